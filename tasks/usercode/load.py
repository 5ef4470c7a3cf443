"""Loads user code by name: ``file.py:function`` beside the config, or ``package.module:function``."""

import hashlib
import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from metrics.errors import ConfigError
from metrics.types import Resolve
from tasks.store.definitions import imported_files
from tasks.usercode.standin import datasets_stand_in

_importing = threading.Lock()


def load_function(reference: str, base_dir: str | Path) -> Callable[..., Any]:
    """The callable that ``reference`` names; raises ConfigError saying which part of the name does not hold.

    A path is relative to ``base_dir``. The file's folder is importable while it loads, so that it may
    import its neighbours; the same file loaded twice is one module.
    """
    source, separator, name = reference.rpartition(":")
    if not separator or not name.isidentifier():
        raise ConfigError(
            f"'{reference}' names no function: expected 'file.py:function' or 'package.module:function'"
        )
    module = _from_file(source, Path(base_dir)) if source.endswith(".py") else _from_package(source)
    function = getattr(module, name, None)
    if function is None:
        defined = sorted(
            entry for entry, value in vars(module).items() if callable(value) and entry[0] != "_"
        )
        raise ConfigError(
            f"'{reference}': {source} defines no '{name}' (it has {', '.join(defined) or 'nothing'})"
        )
    if not callable(function):
        raise ConfigError(f"'{reference}' is not a function: it is of type {type(function).__name__}")
    return function  # type: ignore[no-any-return]


def resolver(base_dir: str | Path) -> Resolve:
    """``load_function`` for one config's folder: what metrics and scorers are given, which read no files."""
    return lambda reference: load_function(reference, base_dir)


def _from_file(source: str, base_dir: Path) -> ModuleType:
    path = (base_dir / source).expanduser().resolve()
    if not path.is_file():
        raise ConfigError(f"'{source}' is not there: expected a Python file at {path}")
    # The name carries path and version: two folders may both have a utils.py, and an edited file, or one
    # whose neighbour was edited, is another module.
    stats = [(file, file.stat()) for file in sorted(imported_files(path))]
    known = "".join(f"{file}{stat.st_mtime_ns}{stat.st_size}" for file, stat in stats)
    version = hashlib.sha256(known.encode()).hexdigest()[:12]
    package = _package_of(path.parent)
    qualified = f"{package}.{path.stem}_{version}"
    if qualified in sys.modules:
        return sys.modules[qualified]
    spec = importlib.util.spec_from_file_location(qualified, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"'{source}' is not a Python file that can be imported")
    module = importlib.util.module_from_spec(spec)
    try:
        with _importing, _neighbours(path.parent, qualified), datasets_stand_in():
            sys.modules[qualified] = module
            spec.loader.exec_module(module)
    except Exception as error:
        sys.modules.pop(qualified, None)
        raise ConfigError(f"'{source}' can't be imported: {type(error).__name__}: {error}") from error
    return module


def _package_of(folder: Path) -> str:
    """Name of the package that stands for the folder, so that its files may say ``from . import helper``."""
    name = f"nightjar_user_{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        package = ModuleType(name, "A folder of a user's files.")
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    return name


@contextmanager
def _neighbours(folder: Path, loaded: str) -> Iterator[None]:
    """Makes a folder's modules importable while ``loaded`` is, and forgets all but that one
    afterwards: another folder has its own ``utils``, and a file may have been edited by the next time."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).resolve().is_relative_to(folder) and name != loaded:
                del sys.modules[name]


def _from_package(source: str) -> ModuleType:
    try:
        with datasets_stand_in():
            return importlib.import_module(source)
    except ImportError as error:
        raise ConfigError(f"module '{source}' can't be imported: {error}") from error
