"""The program's own code in keys: a digest of each package that a stage's imports reach, and the versions of
the libraries that these packages compute with.

A stage's module is followed through every import in it and in what it imports, in functions too, and through
every text that names a module of ours (``"tasks.rows.limited:scoring"``). Of each package where that leads
all files count. A file directly in ``tasks/`` is a stage, or a part of one, and counts by itself. What people
look at (``APART``) is followed from nowhere. Nothing is listed by hand: where a module lies says with what it
counts.

Libraries count by version: those that the packages import, and, of the pure ones that numbers are computed
in, what these libraries need in their turn. Those that only carry requests and states (``CARRIERS``) do not.
"""

import hashlib
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from tasks.store.home import PROJECT
from tasks.store.imports import DIGITS, PACKAGES, Import, Imports, imports_of, remember, remembered

APART: Final = ("flows", "tasks.reporting")
"""What asks for stages, and what shows them: neither makes a row. Import-linter keeps both above everything
that does."""
STAGES: Final = "tasks"
"""The package whose own files are stages."""
PURE: Final = ("metrics", "scorers")
CARRIERS: Final = frozenset(
    {"prefect", "openai", "aiohttp", "httpx", "fsspec", "requests", "dask", "dask_jobqueue", "distributed"}
)
"""Libraries that pure packages may not import: whatever they carry is in the rows and keys as it arrived."""

_FILES: dict[str, Mapping[str, str]] = {}


@dataclass(frozen=True)
class Code:
    """What a stage's keys hold of this program: digests of packages, and versions of libraries."""

    packages: Mapping[str, str]
    libraries: Mapping[str, str]


def stage_code(function: Callable[..., Any]) -> Code:
    """The packages and the libraries behind a stage's function."""
    return _code_behind(function.__module__)


@cache
def whole_code() -> str:
    """One digest of the code and libraries of all stages, as this process has read them."""
    packages = packages_behind(*(name for name in _modules() if _package_of(name) == name))
    known = {name: package_digest(name) for name in packages} | library_versions(packages)
    known["python"] = python_version()
    return hashlib.sha256(repr(sorted(known.items())).encode()).hexdigest()


@lru_cache(maxsize=64)
def _code_behind(module: str) -> Code:
    packages = packages_behind(module)
    return Code(
        {name: package_digest(name) for name in sorted(packages)},
        {"python": python_version(), **library_versions(packages)},
    )


def packages_behind(*modules: str) -> frozenset[str]:
    """The packages that modules of this program reach by imports, their own included; a stage by its
    module."""
    return frozenset(_package_of(module) for module in modules_behind(*modules))


@lru_cache(maxsize=64)
def modules_behind(*modules: str) -> frozenset[str]:
    """The modules of this program that these reach by imports, themselves included."""
    found: set[str] = set()
    waiting = [module for module in modules if module_file(module) is not None]
    while waiting:
        module = waiting.pop()
        if module not in found and not is_below(module, APART):
            found.add(module)
            waiting.extend(_imported(module))
    return frozenset(found)


@cache
def _imported(module: str) -> tuple[str, ...]:
    """Modules of ours that one imports; with each the packages that it is in, whose ``__init__`` runs
    first."""
    imports, named = _imports(module), set()
    for entry in imports.statements:
        named |= set(_modules_named(module, entry))
    for name in imports.named:
        named |= {name, *(_modules_in(name) if _is_package(name) else ())}
    if imports.lists:
        named |= set(_modules_in(module if _is_package(module) else module.rpartition(".")[0]))
    whole = {above for name in named for above in accumulate(name.split("."), "{}.{}".format)}
    return tuple(sorted(name for name in whole if module_file(name) is not None))


def _modules_named(module: str, entry: Import) -> Iterable[str]:
    base = entry.module
    if entry.level:
        parts = module.split(".") if _is_package(module) else module.split(".")[:-1]
        above = parts[: len(parts) - entry.level + 1]
        base = ".".join([*above, base] if base else above)
    # ``from package import module`` names a module, ``from module import name`` none: both are looked for.
    return (base, *(f"{base}.{name}" for name in entry.names))


def _modules_in(package: str) -> Iterable[str]:
    """All modules of a package, and of the packages in it."""
    return (module for module in _modules() if is_below(module, (package,)))


def module_file(module: str) -> Path | None:
    """The file of a module of this program; None for what is none."""
    return _modules().get(module)


@cache
def _modules() -> Mapping[str, Path]:
    found: dict[str, Path] = {}
    for package in PACKAGES:
        for folder, inner, files in os.walk(PROJECT / package):
            inner[:] = [name for name in inner if name != "__pycache__"]
            parent = ".".join(Path(folder).relative_to(PROJECT).parts)
            for name in files:
                if name.endswith(".py"):
                    module = parent if name == "__init__.py" else f"{parent}.{name[:-3]}"
                    found[module] = Path(folder, name)
    return found


def _is_package(module: str) -> bool:
    file = module_file(module)
    return file is not None and file.name == "__init__.py"


def _package_of(module: str) -> str:
    package = module if _is_package(module) else module.rpartition(".")[0]
    return module if package == STAGES else package


def is_below(module: str, packages: Iterable[str]) -> bool:
    """Whether a module is one of the packages, or in one."""
    return any(module == name or module.startswith(f"{name}.") for name in packages)


@cache
def package_digest(package: str) -> str:
    """Digest of all files of a package: of its modules, and of the data beside them. Those of the packages in
    it have their own."""
    files = {name: _source(path).digest for name, path in _files(package)}
    known = "".join(f"{name}\0{files[name]}\0" for name in sorted(files))
    digest = hashlib.sha256(known.encode()).hexdigest()[:DIGITS]
    _FILES[digest] = files
    return digest


def files_by_digest(package: str) -> Mapping[str, str] | None:
    """The digests of the files in a package of ours with that digest; None for one not read in this
    process."""
    return _FILES.get(package)


@cache
def _files(package: str) -> tuple[tuple[str, Path], ...]:
    file = module_file(package)
    assert file is not None, "packages are found by their modules"
    if file.name != "__init__.py" or package == STAGES:
        return ((file.name, file),)
    return tuple((path.relative_to(file.parent).as_posix(), path) for path in _own_files(file.parent))


def _own_files(folder: Path) -> Iterable[Path]:
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py":
            yield path
        elif path.is_dir():
            if path.name != "__pycache__" and not (path / "__init__.py").is_file():
                yield from _own_files(path)
        elif path.suffix != ".pyc":
            yield path


@dataclass(frozen=True)
class _Source:
    """A file of ours: the digest of its bytes, and what it imports, of a Python file."""

    digest: str
    imports: Imports


@cache
def _source(path: Path) -> _Source:
    """Each file is read once a process: what it runs, it has imported before."""
    text = read_source(path)
    imports = imports_of(text) if path.suffix == ".py" else Imports()
    return _Source(hashlib.sha256(text).hexdigest()[:DIGITS], imports)


def read_source(path: Path) -> bytes:
    """The content of a file of ours."""
    return path.read_bytes()


def _imports(module: str) -> Imports:
    file = module_file(module)
    return _source(file).imports if file is not None else Imports()


def library_versions(packages: Iterable[str]) -> dict[str, str]:
    """Installed libraries that packages of ours import, by name, with their versions."""
    own = {package: _libraries_of(package) for package in packages}
    pure = {name for package, names in own.items() if is_below(package, PURE) for name in names}
    found: dict[str, str] = {}
    for name in sorted({name for names in own.values() for name in names} - CARRIERS):
        found |= library_version(name, with_needs=name in pure)
    return dict(sorted(found.items()))


@cache
def _libraries_of(package: str) -> frozenset[str]:
    statements = (entry for _, path in _files(package) for entry in _source(path).imports.statements)
    tops = {entry.module.partition(".")[0] for entry in statements if not entry.level}
    return frozenset(top for top in tops if top not in PACKAGES and top not in sys.stdlib_module_names)


@cache
def library_version(module: str, with_needs: bool = False) -> dict[str, str]:
    """The distributions that an importable top-level module comes from, with their versions; under the
    module's name "not installed" where there is none. ``with_needs``: and all that these need to be
    installed."""
    token = f"{module}{' and its needs' if with_needs else ''} in {_environment()}"
    known = remembered(token)
    if isinstance(known, dict):
        return {str(name): str(version) for name, version in known.items()}
    found = _versions(_distributions(module), with_needs) or {module: "not installed"}
    remember(token, found)
    return found


def _versions(waiting: list[Distribution], with_needs: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    while waiting:
        dist = waiting.pop()
        name = re.sub(r"[-_.]+", "-", dist.name).lower()
        if name not in found and name not in CARRIERS:
            found[name] = dist.version
            needs = (need for need in dist.requires or () if "extra ==" not in need) if with_needs else ()
            waiting.extend(other for need in needs if (other := _distribution(_requirement_name(need))))
    return found


def _distributions(module: str) -> list[Distribution]:
    """Nearly always one, called as the module is; else those whose files hold it."""
    direct = _distribution(module)
    if direct is not None or find_spec(module) is None:
        return [] if direct is None else [direct]
    return [dist for dist in distributions() if _holds(dist, module)]


def _holds(dist: Distribution, module: str) -> bool:
    listed = dist.read_text("top_level.txt")
    if listed is not None:
        return module in listed.split()
    record = f"\n{dist.read_text('RECORD') or ''}"
    return f"\n{module}/" in record or f"\n{module}.py," in record


def _distribution(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except (PackageNotFoundError, ValueError):
        return None


def _requirement_name(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    return found[0] if found else ""


@cache
def _environment() -> str:
    """Which packages are installed: installers add and remove folders, which moves the time of the one
    above."""
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    folders |= {entry for entry in sys.path if entry.endswith("-packages")}
    known = "".join(
        f"{folder}{os.stat(folder).st_mtime_ns}" for folder in sorted(folders) if os.path.isdir(folder)
    )
    return hashlib.sha256(known.encode()).hexdigest()[:DIGITS]


def python_version() -> str:
    """The version whose standard library counts."""
    return f"Python {sys.version_info.major}.{sys.version_info.minor}"
