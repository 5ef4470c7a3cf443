"""Loads user code by name: ``file.py:function`` beside the config, or ``package.module:function``.

A file is a module of its folder's package, so that its neighbours can be imported relatively.
``UserModules`` are the modules of one owner: a benchmark of lm-evaluation-harness has its own, since many
keep state at the module's level (a generator, a counter) and must not see what another benchmark left
there. Everyone else shares one set, in which the same version of a file is imported once.

Benchmarks of lm-evaluation-harness import some thirty packages beside their own files. The extra
``harness`` brings those that most of them need; the rest are named one by one where one is missing.
"""

import hashlib
import importlib
import importlib.util
import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from metrics.errors import ConfigError
from metrics.types import Resolve
from tasks.store.definitions import imported_files
from tasks.usercode.code_eval import importing
from tasks.usercode.surroundings import stand_ins
from tasks.usercode.trust import check_trusted

EXTRA: Final = "harness"
IN_EXTRA: Final = frozenset(
    {
        "antlr4", "bs4", "datasets", "emoji", "evaluate", "fugashi", "fuzzywuzzy", "html2text",
        "immutabledict", "iso639", "jieba", "langdetect", "lm_eval", "math_verify",
        "more_itertools", "neologdn", "nltk", "pandas", "pycountry", "pymorphy3", "regex", "rouge",
        "scipy", "sklearn", "statsmodels", "sympy", "tqdm", "transformers", "wonderwords",
        "word2number",
    }
)  # fmt: skip
"""Top-level modules that the extra brings."""
BESIDE: Final = {
    "bert_score": "bert-score",
    "kstar_planner": "kstar-planner",
    "tinyBenchmarks": "git+https://github.com/felipemaiapolo/tinyBenchmarks",
}
"""Top-level module → the name it is installed by, where that is another, for what the extra leaves out."""


def missing_package(error: BaseException) -> str:
    """``"; pip install …"`` where ``error`` is the import of a package that is not installed, else an empty
    text.

    >>> missing_package(ModuleNotFoundError("No module named 'json'", name="json"))
    ''
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ModuleNotFoundError):
        cause = cause.__cause__ or cause.__context__
    name = cause.name if isinstance(cause, ModuleNotFoundError) else None
    if not name:
        return ""
    top = name.partition(".")[0]
    if top in sys.modules or top in sys.stdlib_module_names:
        return ""  # the package is there, and a module of it is not: installing it again would not help
    if top in IN_EXTRA:
        return f"; the extra '{EXTRA}' brings it: pip install -e '.[{EXTRA}]'"
    return f"; it is in no extra: pip install {BESIDE.get(top, top)}"


PARENTS: Final = 2
"""Folders above a file's that its relative imports may reach (``from ...other import x``)."""
PREFIX: Final = "nightjar_user_"
OWNED: Final = 256
"""Sets of modules of an owner that stay importable; of older ones only what was loaded lives on."""

_importing = threading.RLock()
_numbers = itertools.count(1)
_owned: "deque[str]" = deque()


class UserModules:
    """Modules loaded from users' files: one set of them.

    An ``own`` set shares none with anyone, so that what module-level code did begins anew with the set.
    """

    def __init__(self, own: bool = False) -> None:
        self._suffix = f"_{next(_numbers)}" if own else ""
        self._own = own

    def function(self, reference: str, base_dir: str | Path) -> Callable[..., Any]:
        """The callable that ``reference`` names; raises ConfigError saying which part of the name does not
        hold.

        A path is relative to ``base_dir``. The file's folder is importable while it loads, so that it may
        import its neighbours.
        """
        source, separator, name = reference.rpartition(":")
        if not separator or not name.isidentifier():
            raise ConfigError(
                f"'{reference}' names no function: expected 'file.py:function' or 'package.module:function'"
            )
        # The config's folder counts for functions of packages, too: it chooses their arguments.
        check_trusted(Path(base_dir), reference)
        module = self._from_file(source, Path(base_dir)) if source.endswith(".py") else _from_package(source)
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

    def _from_file(self, source: str, base_dir: Path) -> ModuleType:
        path = (base_dir / source).expanduser().resolve()
        if not path.is_file():
            raise ConfigError(f"'{source}' is not there: expected a Python file at {path}")
        for file in sorted(imported_files(path)):
            check_trusted(file.parent, source)
            check_trusted(file, source)
        package = _package_of(path.parent, self._suffix, self._own)
        # In the common set the name carries the version: an edited file, or one whose neighbour was edited,
        # is another module. An owner's set is as old as its owner.
        qualified = f"{package}.{path.stem}" if self._own else f"{package}.{path.stem}_{_version(path)}"
        with _importing:
            if qualified in sys.modules:
                return sys.modules[qualified]
            spec = importlib.util.spec_from_file_location(qualified, path)
            if spec is None or spec.loader is None:
                raise ConfigError(f"'{source}' is not a Python file that can be imported")
            module = importlib.util.module_from_spec(spec)
            try:
                with (
                    _neighbours(path.parent, package.partition(".")[0] if self._own else qualified),
                    stand_ins(),
                    importing(),
                ):
                    sys.modules[qualified] = module
                    spec.loader.exec_module(module)
            except BaseException as error:
                sys.modules.pop(qualified, None)
                if isinstance(error, ConfigError) or not isinstance(error, Exception | SystemExit):
                    raise  # an interruption, after which the file is not there by half
                remedy = missing_package(error)  # some files exit where a program is not installed
                raise ConfigError(
                    f"'{source}' can't be imported: {type(error).__name__}: {error}{remedy}"
                ) from error
        return module


_shared = UserModules()


def load_function(reference: str, base_dir: str | Path) -> Callable[..., Any]:
    """``UserModules.function`` in the set that all share: the same file loaded twice is one module."""
    return _shared.function(reference, base_dir)


def resolver(base_dir: str | Path, own: bool = False) -> Resolve:
    """The functions of one config's folder by name: what metrics and scorers are given, which read no files.

    ``own``: from a set of modules that begins with this resolver.
    """
    modules = UserModules(own=True) if own else _shared
    return lambda reference: modules.function(reference, base_dir)


def _version(path: Path) -> str:
    stats = [(file, file.stat()) for file in sorted(imported_files(path))]
    known = "".join(f"{file}{stat.st_mtime_ns}{stat.st_size}" for file, stat in stats)
    return hashlib.sha256(known.encode()).hexdigest()[:12]


def _package_of(folder: Path, suffix: str, own: bool) -> str:
    """Name of the package that stands for the folder, so that its files may say ``from . import helper``,
    and for the folders above it ``from ..other import helper``."""
    above = min(PARENTS, len(folder.parents))
    root = folder.parents[above - 1] if above else folder
    name = f"{PREFIX}{hashlib.sha256(str(root).encode()).hexdigest()[:12]}{suffix}"
    if own and name not in sys.modules:
        _owned.append(name)
        while len(_owned) > OWNED:
            _forget(_owned.popleft())
    place = root
    for part in ("", *folder.relative_to(root).parts):
        place = place / part
        name = f"{name}.{part.replace('.', '_')}" if part else name
        if name not in sys.modules:
            package = ModuleType(name, "A folder of a user's files.")
            package.__path__ = [str(place)]
            sys.modules[name] = package
    return name


def _forget(package: str) -> None:
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        sys.modules.pop(name, None)


@contextmanager
def _neighbours(folder: Path, loaded: str) -> Iterator[None]:
    """Makes a folder's modules importable while a file of it loads, and forgets all afterwards but those
    whose name begins with ``loaded``: another folder has its own ``utils``, and a file may have been edited
    by the next time."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            theirs = name.startswith(PREFIX) or (file and Path(file).resolve().is_relative_to(folder))
            if file and theirs and not name.startswith(loaded):
                del sys.modules[name]


def _from_package(source: str) -> ModuleType:
    try:
        with stand_ins(), importing():
            return importlib.import_module(source)
    except ImportError as error:
        raise ConfigError(f"module '{source}' can't be imported: {error}{missing_package(error)}") from error
