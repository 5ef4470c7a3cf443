"""Loads user code by name: ``file.py:function`` beside the config, or ``package.module:function``.

A file is a module of its folder's package, so that its neighbours can be imported relatively.
``UserModules`` are the modules of one owner: a benchmark of lm-evaluation-harness has its own, since many
keep state at the module's level (a generator, a counter) and must not see what another benchmark left
there. Everyone else shares one set, in which the same version of a file is imported once.

Benchmarks of lm-evaluation-harness import some thirty packages beside their own files. The extra
``harness`` brings those that most of them need; the rest are named one by one where one is missing.

Code runs without asking if it is in folders that only the user can write to, in the project's or in
installed packages. Anything else runs once its user has said so by ``--trust``, which is remembered in
the user's own folder of settings (a folder can't vouch for itself), or where ``NIGHTJAR_TRUST`` lists the
folder, as for workers. A config of any other folder names only files below it (``check_named``).
"""

import hashlib
import importlib
import importlib.util
import itertools
import os
import re
import site
import stat
import sys
import sysconfig
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from metrics.errors import ConfigError, interrupts, named, users_code
from tasks.store.digests import kept_digest
from tasks.store.home import PROJECT, named_path, private_folder, variable
from tasks.usercode import observed
from tasks.usercode.evaluate import importing
from tasks.usercode.files import file_of, has_module, imported_files, library_of, module_place
from tasks.usercode.surroundings import kept_streams, stand_ins

TRUST_IT: Final = (
    "call python -m flows.eval (or flows.suite) once with --trust, or name the folder in NIGHTJAR_TRUST"
)
_asked = False


def trust_what_is_named(yes: bool = True) -> None:
    """From now on what this process would refuse is remembered as trusted instead (``--trust``)."""
    global _asked
    _asked = yes


def trusting() -> bool:
    """Whether that is so."""
    return _asked


def check_trusted(place: Path, reference: str) -> None:
    """Raises ConfigError if code that a file of this folder names, or that this file is, must not run yet."""
    place = place.resolve()
    if (why := _distrusted(place)) is not None:
        raise ConfigError(
            f"'{reference}' is code of {place}, {why}: it runs with your rights. Read it, then {TRUST_IT}"
        )


def check_named(path: Path, folder: Path, name: str) -> None:
    """Raises ConfigError if ``path``, which a config of the folder names, lies elsewhere, by a link or
    plainly, and the folder's code must not run yet: what a run reads it sends to the config's endpoints."""
    folder = folder.resolve()
    if not is_below(path, folder) and (why := _distrusted(folder)) is not None:
        raise ConfigError(
            f"'{name}' is not below {folder}, {why}: such a config names files of its own folder only, for "
            f"they are sent to its endpoints. Move the file there, or read the config, then {TRUST_IT}"
        )


def is_below(path: Path, folder: Path) -> bool:
    """Whether a file is in a folder once all links are followed; a name that no file can have is."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):
        return True


def may_run_code(folder: Path) -> bool:
    """Whether configs of the folder run code without being asked about it."""
    return _doubt(folder.resolve()) is None


def _distrusted(place: Path) -> str | None:
    """Why code of a place must not run yet; None if it may. ``--trust`` lets it, and is remembered."""
    why = _doubt(place)
    if why is not None and _asked:
        _remember(place)
        return None
    return why


def _doubt(place: Path) -> str | None:
    """Why a place may hold what another user wrote; None if it can't, or if its user trusts it."""
    if _runs_unasked(place):
        return None
    why = _writable_by_others(place)
    return None if why is None or any(place.is_relative_to(entry) for entry in _trusted()) else why


def _runs_unasked(path: Path) -> bool:
    return any(path.is_relative_to(above) for above in (PROJECT, *_installed()))


@cache
def _installed() -> tuple[Path, ...]:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths |= {*site.getsitepackages(), site.getusersitepackages()}
    return tuple(Path(path).resolve() for path in paths if path)


def _writable_by_others(place: Path) -> str | None:
    """Why a folder, or a Python file, may hold what another user wrote; None if it can't."""
    try:
        found = place.stat()
    except OSError:
        return "which can't be looked at"
    # Who put a file into the user's own folder was the user, or root.
    if found.st_uid != os.geteuid() and not (found.st_uid == 0 and stat.S_ISREG(found.st_mode)):
        return "which belongs to another user"
    if found.st_mode & stat.S_IWOTH:
        return "which every user can write to"
    if found.st_mode & stat.S_IWGRP and not _own_group(found.st_gid):
        return "which its group can write to"
    return None


def _own_group(gid: int) -> bool:
    """Whether the group is the user's own, as many systems give each user one, with nobody else in it."""
    import grp
    import pwd

    try:
        name, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == name and set(group.gr_mem) <= {name}


def _trusted() -> list[Path]:
    listed = [entry.strip() for entry in variable("NIGHTJAR_TRUST").split(os.pathsep)]
    with suppress(OSError):
        listed += _list().read_text(encoding="utf-8").splitlines()
    return [named_path("", entry).resolve() for entry in listed if entry]


def _remember(place: Path) -> None:
    path = _list()
    private_folder(path.parent)
    with open(path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(f"{place}\n")


def _list() -> Path:
    settings = named_path("", os.environ.get("XDG_CONFIG_HOME") or "~/.config")
    return settings / "nightjar" / "trusted"


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
OTHER_PIP_NAMES: Final = {
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
    return f"; it is in no extra: pip install {OTHER_PIP_NAMES.get(top, top)}"


PARENTS: Final = 2
"""Folders above a file's that its relative imports may reach (``from ...other import x``)."""
PREFIX: Final = "nightjar_user_"
_VERSIONED = re.compile(r"_[0-9a-f]{12}$")
OWNED: Final = 256
"""Sets of modules of an owner that stay importable; of older ones only what was loaded lives on."""

Place = tuple[Path, str]
"""A file, and a name in it."""

_importing = threading.RLock()
_numbers = itertools.count(1)
_owned: "deque[str]" = deque()
_loaded = threading.Event()


class _NeighbourHint:
    """A finder, asked last, that finds nothing: it says why a neighbour is not found by a function that
    imports it as it runs."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        """None; raises ModuleNotFoundError where a user's file asks for one beside it."""
        file = observed.importing_file() if path is None else None
        if file is not None and has_module(file.parent, name):
            raise ModuleNotFoundError(
                f"No module named '{name}' as the function runs: it is beside {file.name}, whose folder "
                "can be imported from while the file loads; import it at the top, or by "
                f"'from . import {name}'",
                name=name,
            )


class UserModules:
    """Modules loaded from users' files: one set of them.

    An ``own`` set shares none with anyone, so that what module-level code did begins again with the set.
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
        _loaded.set()
        if _NeighbourHint not in sys.meta_path:
            sys.meta_path.append(_NeighbourHint)
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
        if module.__file__ is not None:
            observed.belongs(function, module.__file__)
        return function  # type: ignore[no-any-return]

    def _from_file(self, source: str, base_dir: Path) -> ModuleType:
        path = _file_at(source, base_dir)
        if not path.is_file():
            raise ConfigError(f"'{source}' is not there: expected a Python file at {path}")
        files = imported_files(path)
        for file in sorted(file for file in files if file.is_relative_to(_root_of(path.parent))):
            check_trusted(file.parent, source)
            check_trusted(file, source)
        package = _package_of(path.parent, self._suffix, self._own)
        # In the common set the name carries the version: an edited file, or one whose neighbour was edited,
        # is another module. An owner's set is as old as its owner.
        qualified = f"{package}.{path.stem}" if self._own else f"{package}.{path.stem}_{_version(files)}"
        with _importing:
            observed.watch(path)
            if self._own and qualified in sys.modules:
                return sys.modules[qualified]
            if observed.changed_since_read(files):
                _forget_packages(observed.forget(files))
                sys.modules.pop(qualified, None)
            if qualified in sys.modules:
                return sys.modules[qualified]
            if not self._own:
                _forget_modules(name for name in list(sys.modules) if _is_neighbour(name, files))
            spec = importlib.util.spec_from_file_location(qualified, path)
            if spec is None or spec.loader is None:
                raise ConfigError(f"'{source}' is not a Python file that can be imported")
            module = importlib.util.module_from_spec(spec)
            try:
                with (
                    users_code(),
                    kept_streams(),
                    _neighbours(path.parent, package.partition(".")[0] if self._own else qualified),
                    stand_ins(),
                    importing(),
                ):
                    sys.modules[qualified] = module
                    spec.loader.exec_module(module)
            except BaseException as error:
                sys.modules.pop(qualified, None)
                if isinstance(error, ConfigError) or interrupts(error):
                    raise  # an interruption, after which the file is not there by half
                remedy = missing_package(error)  # some files exit where a program is not installed
                raise ConfigError(f"'{source}' can't be imported: {named(error)}{remedy}") from error
        return module


_shared = UserModules()


def has_loaded() -> bool:
    """Whether anything of a user's was loaded in this process, or tried to be."""
    return _loaded.is_set()


def load_function(reference: str, base_dir: str | Path) -> Callable[..., Any]:
    """``UserModules.function`` in the set that all share: the same file loaded twice is one module."""
    return _shared.function(reference, base_dir)


class Resolver:
    """The functions of one config's folder by name: what metrics and scorers are given, which read no files.

    It knows what the config calls what it was asked for: an object knows where it was made alone, which may
    be another file.
    """

    def __init__(self, modules: UserModules, base_dir: str | Path) -> None:
        self._modules = modules
        self._base_dir = Path(base_dir)
        self._named: dict[int, tuple[object, dict[Place, None]]] = {}

    def __call__(self, reference: str) -> Callable[..., Any]:
        """The callable that ``reference`` names; raises ConfigError."""
        function = self._modules.function(reference, self._base_dir)
        source, _, name = reference.rpartition(":")
        file = _file_at(source, self._base_dir) if source.endswith(".py") else module_place(source)
        if file is not None:
            # The object is held, too: another one may not get its number.
            self._named.setdefault(id(function), (function, {}))[1][file, name] = None
        return function

    def places(self, code: object) -> tuple[Place, ...]:
        """The files and names by which the config came by something that is called: by its own, or by those
        of its class, of the object whose method it is, or of that one's class."""
        owner = getattr(code, "__self__", None)
        known = (self._named.get(id(entry)) for entry in (code, type(code), owner, type(owner)))
        return tuple(dict.fromkeys(place for entry in known if entry is not None for place in entry[1]))


def resolver(base_dir: str | Path, own: bool = False) -> Resolver:
    """The functions of one config's folder by name. ``own``: from a set of modules that begins with this
    resolver."""
    return Resolver(UserModules(own=True) if own else _shared, base_dir)


def _file_at(source: str, base_dir: Path) -> Path:
    return named_path(base_dir, source).resolve()


def _version(files: Iterable[Path]) -> str:
    known = "".join(f"{file}{kept_digest(file)}" for file in sorted(files))
    return hashlib.sha256(known.encode()).hexdigest()[:12]


def _root_of(folder: Path) -> Path:
    """The folder that the package of a folder's files begins with."""
    above = min(PARENTS, len(folder.parents))
    return folder.parents[above - 1] if above else folder


def is_shared(package: str) -> bool:
    """Whether a package is the one that stands for a folder in the common set of modules."""
    return package.startswith(PREFIX) and "_" not in package.removeprefix(PREFIX)


def _package_of(folder: Path, suffix: str, own: bool) -> str:
    """Name of the package that stands for the folder, so that its files may say ``from . import helper``,
    and for the folders above it ``from ..other import helper``."""
    root = _root_of(folder)
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
    for name in list(sys.modules):  # copied at once: other threads import meanwhile
        if name == package or name.startswith(f"{package}."):
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
        new = [name for name in set(sys.modules) - before if not name.startswith(loaded)]
        _forget_modules(name for name in new if _place_of(name) and _is_theirs(name, folder))


def _place_of(name: str) -> Path | None:
    """The file of a module, the folder of a package without one; None for what lies nowhere."""
    module = sys.modules.get(name)
    if file := getattr(module, "__file__", None):
        return Path(file).resolve()
    spec = getattr(module, "__spec__", None)  # the packages that stand for folders have none
    path = list(getattr(module, "__path__", ())) if spec is not None else []
    return Path(path[0]).resolve() if path else None


def _is_theirs(name: str, folder: Path) -> bool:
    place = _place_of(name)
    return name.startswith(PREFIX) or (place is not None and place.is_relative_to(folder))


def _is_neighbour(name: str, files: Collection[Path]) -> bool:
    """Whether a module was imported by a function of the common set as it ran: a neighbour of its file."""
    return is_shared(name.partition(".")[0]) and not _VERSIONED.search(name) and _place_of(name) in files


def _forget_modules(names: Iterable[str]) -> None:
    """Has modules imported again by who wants them next."""
    for name in list(names):
        module = sys.modules.pop(name, None)
        above, _, last = name.rpartition(".")
        folder = sys.modules.get(above)
        stands_in = folder is not None and folder.__spec__ is None
        if stands_in and getattr(folder, last, None) is module:
            delattr(folder, last)  # ``from . import last`` would find it there


def _from_package(source: str) -> ModuleType:
    importlib.invalidate_caches()
    place = module_place(source)
    try:
        with _importing, stand_ins(), importing():
            if place is not None:
                observed.watch(place)
                _forget_edited(place)
            return importlib.import_module(source)
    except ImportError as error:
        raise ConfigError(f"module '{source}' can't be imported: {error}{missing_package(error)}") from error


def _forget_edited(place: Path) -> None:
    """Has a user's package imported again if it, or what it has read, was edited in the meantime."""
    files = imported_files(place) if library_of(place) is None else frozenset[Path]()
    if not observed.changed_since_read(files):
        return
    _forget_packages(observed.forget(files))


def _forget_packages(files: Collection[Path]) -> None:
    """Has the packages that these files are of, and modules that are of none, imported again; the folders of
    configs, whose modules come and go with each version, see to theirs."""
    names = {name: getattr(module, "__file__", None) for name, module in sys.modules.copy().items()}
    tops = {name.partition(".")[0] for name, file in names.items() if file and file_of(file) in files}
    _forget_modules(
        name
        for name, file in names.items()
        if (top := name.partition(".")[0]) in tops
        and not (top.startswith(PREFIX) or top == "__main__" or (file and library_of(file)))
    )
