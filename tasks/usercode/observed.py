"""Which files users' code was seen to read: an audit hook of Python's, as ccache and tup look at what a
compiler opens.

What is opened for reading, and what is imported, counts for every user's file whose code is running at that
moment, in whichever thread; a thread that such code starts counts for it as long as it lives. A file that a
module has read once counts for all its later results, since it may have kept what it read. A file that the
code has written itself is no source of it.

Bytecode of users' files is not read (``_Unread``): Python knows it by the time in seconds and the size of its
source, so that an edit may leave the code of before under the key of the new one.

Not seen: listed folders, whether a file is there that is not opened, environment variables, other
processes, readers that are not Python's (Arrow's, DuckDB's), compiled libraries that others than ctypes load,
and what SQLite attaches to a database. A process that calls users' functions for another one sends what it
sees (``forward``, ``take``).
"""

import inspect
import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial, wraps
from importlib.util import source_from_cache
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from tasks.store.digests import kept_digest
from tasks.store.home import default_store, home
from tasks.store.imports import DIGITS
from tasks.usercode.files import file_of, is_installed, is_ours, library_of

GONE: Final = "no file"
"""What stands for the digest of a file that is not there."""
EDITED: Final = "edited while it was read"
"""What stands for the digest of one that was read in several states."""

State = tuple[int, int, int] | None
"""Time, size and inode of a file; None: it is not there."""
Note = tuple[tuple[str, ...], str, State]
"""Users' files whose code ran, what was read then (empty: the first file was loaded), and its state."""


UNTOLD: Final[State] = (-1, -1, -1)
"""The state of a file that may be another one: it is never found so again."""


class Unknown(Exception):
    """What a function depends on can't be said: it was loaded unseen, or a file changed while it ran."""


class _Seen:
    """What this process has seen so far."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.loaded: set[str] = set()
        self.reads: dict[str, dict[str, set[State]]] = defaultdict(dict)
        self.forgotten: dict[str, tuple[float, dict[str, set[State]]]] = {}
        """When what a file had read was last forgotten, and what: a function may run on meanwhile."""
        self.written: dict[str, frozenset[str]] = {}
        """Files that users' code has made, and whose code that was."""
        self.databases: set[str] = set()
        """Files of SQLite, which others than Python write."""
        self.named: set[str] = set()
        """Files of functions that configs name, wherever they lie: they count as users' files."""
        self.made: dict[int, tuple[CodeType, str]] = {}
        """Code that was made of a text, by its number, and the file whose function it is."""
        self.before: dict[str, tuple[ModuleType, str]] = {}
        """Modules of users' files that were there before anyone looked, and their files."""
        self.lost: set[str] = set()
        """Events that could not be looked at: after that nothing is known."""
        self.folder = ""
        """The working folder that users' code finds."""
        self.watching = False
        self.send: Callable[[Note], None] | None = None


_seen = _Seen()
_busy = threading.local()
os.register_at_fork(after_in_child=lambda: setattr(_seen, "lock", threading.RLock()))


def watch(path: Path) -> None:
    """From now on sees what users' code reads; ``path`` is a file of a function that is about to be
    loaded."""
    with _seen.lock:
        _seen.named.add(os.path.realpath(path))
        _seen.folder = working_folder()
        _users_file.cache_clear()
        if not _seen.watching:
            _seen.watching = True
            _seen.before = dict(_users_modules())
            sys.addaudithook(_hook)
            _mark_threads()
            _mark_folder()


def belongs(function: Callable[..., Any], file: str) -> None:
    """Has what a function reads count for the file that it was found in, where its code was made of a text
    and names none."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None)
    users = _users_file(file)
    if isinstance(code, CodeType) and not os.path.isabs(code.co_filename) and users is not None:
        _seen.made[id(code)] = (code, users)


def _users_modules() -> Iterator[tuple[str, tuple[ModuleType, str]]]:
    script = sys.modules.get("__main__")  # it is a module of its own where it is imported
    for name, module in sys.modules.copy().items():
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if not isinstance(file, str) or module is script or is_installed(file):
            continue
        if (path := _users_file(file)) is not None:
            yield name, (module, path)


def working_folder() -> str:
    """The process's; empty where it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def forward(send: Callable[[Note], None]) -> None:
    """Has everything that is seen sent on, too, as it is seen."""
    _seen.send = send


def take(note: Note) -> None:
    """Takes what another process has seen."""
    users, path, state = note
    with _seen.lock:
        if not path:
            _seen.loaded.add(users[0])
        for user in users if path else ():
            _seen.reads[user].setdefault(path, set()).add(state)


def changed_since_read(files: Iterable[Path]) -> bool:
    """Whether something that these users' files, or the code behind them, have read is not as it was then."""
    return any(states != {_state(path)} for path, states in _read_by(files)[1].items())


def forget(files: Iterable[Path]) -> frozenset[Path]:
    """Forgets what these files, and the code behind them, have read: they are about to be loaded again.
    Returns the files of all that code."""
    code, _ = _read_by(files)
    with _seen.lock:
        for file in code:
            _seen.forgotten[file] = time.monotonic(), _seen.reads.pop(file, {})
            _seen.loaded.discard(file)
    return frozenset(map(Path, code))


def read_files(entry: Path, reached: Iterable[Path], since: float) -> dict[str, str]:
    """All that the code of a function was seen to read, itself too, by path: a digest, ``GONE`` or
    ``EDITED``; and, with a slash behind it, the working folder where names led from it. ``entry`` is its
    file, ``reached`` are those that it is known to import; it began to run at ``since``, by the monotonic
    clock. Raises Unknown."""
    code, reads = _read_by([entry, *reached])
    with _seen.lock:
        for at, forgotten in (_seen.forgotten[file] for file in code if file in _seen.forgotten):
            for path, states in forgotten.items() if at > since else ():
                reads.setdefault(path, set()).update(states)
    unseen = {file for name, (module, file) in _seen.before.items() if sys.modules.get(name) is module}
    if str(entry) not in _seen.loaded or _seen.lost or not unseen.isdisjoint(code):
        raise Unknown(f"{entry}, or what it imports, was loaded before anyone looked")
    own = {p for p in reads if p in _seen.databases or not code.isdisjoint(_seen.written.get(p, ()))}
    found = {path: _digest(path, states, path in own) for path, states in reads.items()}
    return {path: digest for path, digest in found.items() if digest is not None}


def _read_by(files: Iterable[Path]) -> tuple[set[str], dict[str, set[State]]]:
    """The code behind users' files, and what it has read in which states."""
    code: set[str] = set()
    reads: dict[str, set[State]] = {}
    waiting = [str(file) for file in files]
    with _seen.lock:
        while waiting:
            file = waiting.pop()
            if file not in code:
                code.add(file)
                for path, states in _seen.reads.get(file, {}).items():
                    reads.setdefault(path, set()).update(states)
                    waiting += [path] if path in _seen.loaded else []
    return code, reads


def loaded_files() -> frozenset[Path]:
    """Users' files whose module code this process has seen run."""
    with _seen.lock:
        return frozenset(Path(file) for file in _seen.loaded)


def digest_now(path: str) -> str:
    """Digest of a file's bytes as they are now, ``GONE`` where there is none."""
    try:
        return kept_digest(path)[:DIGITS]
    except OSError:
        return GONE


def _digest(path: str, states: set[State], own: bool) -> str | None:
    """Of a file as it was read; None for one of the code's own that is gone by now. Raises Unknown, also
    where the code itself has changed it, or keeps something there (``own``)."""
    if UNTOLD in states:
        raise Unknown(f"{path} may be another file of that name")
    now = _state(path)
    passing = (os.path.join(tempfile.gettempdir(), ""), _MEMORY)
    if now is None and states != {None} and path.startswith(passing):
        return None
    if states != {now} and own:
        raise Unknown(f"{path} changed while it was read")
    if states != {now}:
        return EDITED
    found = digest_now(path)
    if _state(path) != now:
        raise Unknown(f"{path} changes")
    return found


def _state(path: str) -> State:
    if path.endswith(os.sep):
        return None  # a working folder: where it is counts, and not what is in it
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    handler = _HANDLERS.get(event)
    if handler is None or getattr(_busy, "now", False):
        return
    _busy.now = True
    try:
        handler(arguments)
    except _Unread:
        raise
    except Exception:  # whatever is wrong with looking: the code that is looked at goes on
        _seen.lost.add(event)
    finally:
        _busy.now = False


class _Unread(OSError):
    """Tells the import that there is no bytecode: then it compiles the source."""


def _is_users_bytecode(name: str, reader: FrameType) -> bool:
    """Whether an import is about to read what was compiled of a user's file before."""
    if not reader.f_code.co_filename.startswith("<frozen importlib."):
        return False
    try:
        source = source_from_cache(name)
    except ValueError:  # a module without a source
        return False
    return _users_file(source) is not None


_WRITES: Final = os.O_WRONLY | os.O_RDWR


def _opened(arguments: tuple[Any, ...]) -> None:
    path, mode, flags = arguments
    if isinstance(path, int):
        return
    name = os.path.abspath(os.fsdecode(path))
    if name.endswith(".pyc") and _is_users_bytecode(name, sys._getframe(2)):
        raise _Unread(f"{name}: bytecode of a user's file is not read")
    users = _users_running()
    if not users or _is_apart(name):
        return
    flags = flags if isinstance(flags, int) else os.O_RDONLY
    if mode is None and not os.path.isabs(os.fsdecode(path)):  # os.open, and nobody tells below which folder
        if not flags & os.O_WRONLY and not _is_pythons(sys._getframe(2)):
            _note(users, name, told=False)
        return
    _note_folder(users, path)
    if flags & _WRITES and (flags & os.O_TRUNC or (flags & os.O_CREAT and not os.path.exists(name))):
        _seen.written[name] = users | _seen.written.get(name, frozenset())
    elif not flags & os.O_WRONLY:
        _note(users - _seen.written.get(name, frozenset()), name)


def _is_pythons(frame: FrameType) -> bool:
    """Whether code is of the standard library, which opens folders so, to walk through them."""
    file = frame.f_code.co_filename
    return file.startswith("<frozen ") or library_of(file) == "python"


def _ran(arguments: tuple[Any, ...]) -> None:
    """Module code is about to run: of an import, or of a file that is loaded by its path."""
    file = _users_file(getattr(arguments[0], "co_filename", "") or "")
    if file is None:
        return
    importers = _users_running()
    _tell(((file,), "", None))
    _note(importers | {file}, file)


def _imported(arguments: tuple[Any, ...]) -> None:
    """An import that is not served from ``sys.modules``; a library that is compiled names its file."""
    file = arguments[1]
    if isinstance(file, str) and (users := _users_running()) and not _is_apart(file):
        _note(users, os.path.realpath(file))


def _linked(arguments: tuple[Any, ...]) -> None:
    """A compiled library is loaded by its path; by another name the system looks for its own."""
    name = arguments[0] and os.fsdecode(arguments[0])
    if not name or os.sep not in name or not (users := _users_running()) or _is_apart(os.path.abspath(name)):
        return
    _note_folder(users, name)
    _note(users, os.path.abspath(name))


def _connected(arguments: tuple[Any, ...]) -> None:
    """A SQLite database is about to be opened."""
    name = _database_file(os.fsdecode(arguments[0]))
    if name and (users := _users_running()):
        _note_folder(users, name)
        for file in (name, f"{name}-wal"):  # what was written last may stand there alone
            _seen.databases.add(os.path.abspath(file))
            _note(users, os.path.abspath(file))


def _database_file(name: str) -> str:
    """The file of a SQLite database by its name or URI; empty for one in memory, and one that is yet to be
    made."""
    if os.path.isfile(name) or not name.startswith("file:"):
        return name if os.path.isfile(name) else ""
    parts = urlsplit(name)
    file, mode = unquote(parts.path), dict(parse_qsl(parts.query)).get("mode")
    return file if mode in ("ro", "rw") or os.path.isfile(file) else ""


def _renamed(arguments: tuple[Any, ...]) -> None:
    """A file is put in place whole, as what is written beside it first."""
    place = arguments[1]
    if not isinstance(place, int) and (users := _users_running()):
        name = os.path.abspath(os.fsdecode(place))
        _seen.written[name] = users | _seen.written.get(name, frozenset())


def _moved(arguments: tuple[Any, ...]) -> None:
    """Another working folder is chosen."""
    if users := _users_running():
        _note_folder(users, arguments[0])


def _note_folder(users: frozenset[str], path: int | str | bytes | os.PathLike[str]) -> None:
    """Notes the working folder where a name leads from it; one that users' code has chosen leads from what
    is noted already."""
    if isinstance(path, int) or os.path.isabs(os.fsdecode(path)):
        return
    if users and _seen.folder and working_folder() == _seen.folder:
        _note(users, os.path.join(_seen.folder, ""))


def _mark_threads() -> None:
    """Has threads know for whom they run. Python tells of their start from 3.12 on only."""
    start = threading.Thread.start

    @wraps(start)
    def marked(thread: threading.Thread) -> None:
        if users := _users_running():
            thread._reads_for = users  # type: ignore[attr-defined]
        start(thread)

    threading.Thread.start = marked  # type: ignore[method-assign,assignment]


def _mark_folder() -> None:
    """Has it noted who asks for the working folder, as ``Path.resolve`` and ``abspath`` do of a name that
    leads from it: Python tells nobody."""
    getcwd = os.getcwd

    @wraps(getcwd)
    def marked() -> str:
        if not getattr(_busy, "now", False):
            _busy.now = True
            try:
                _note_folder(_users_running(), "")
            finally:
                _busy.now = False
        return getcwd()

    os.getcwd = marked


_HANDLERS: Final[Mapping[str, Callable[[tuple[Any, ...]], None]]] = {
    "open": _opened,
    "exec": _ran,
    "import": _imported,
    "os.chdir": _moved,
    "os.rename": _renamed,
    "ctypes.dlopen": _linked,
    "sqlite3.connect": _connected,
}


def _note(users: Iterable[str], path: str, told: bool = True) -> None:
    state = _state(path) if told else UNTOLD
    new = tuple(user for user in users if state not in _seen.reads.get(user, {}).get(path, ()))
    if new and (path.endswith(os.sep) or not os.path.isdir(path)):
        _tell((new, path, state))


def _tell(note: Note) -> None:
    take(note)
    if _seen.send is not None:
        _seen.send(note)


def _users_running() -> frozenset[str]:
    """Users' files whose code runs in this thread, or that started it."""
    found: set[str] = set(getattr(threading.current_thread(), "_reads_for", ()))
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = _users_file(frame.f_code.co_filename)
        if file is None and (made := _seen.made.get(id(frame.f_code))) is not None:
            file = made[1]
        if file is not None:
            found.add(file)
        frame = frame.f_back
    return frozenset(found)


def importing_file() -> Path | None:
    """The user's file whose import statement asks a finder, which calls this; None for another's."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib._bootstrap"):
        frame = frame.f_back
    file = _users_file(frame.f_code.co_filename) if frame is not None else None
    return None if file is None else Path(file)


@cache
def _users_file(name: str) -> str | None:
    """The user's file, or archive, that a code's file name is in; None for ours, a library's, and what is no
    file."""
    path = str(file_of(name) or "")
    users = path in _seen.named or (bool(path) and not is_ours(path) and library_of(path) is None)
    return path if users else None


_DEVICES: Final = ("/proc/", "/dev/", "/sys/")
_MEMORY: Final = "/dev/shm/"
"""Files like any others."""


def _is_apart(name: str) -> bool:
    """What is no source of a user's: devices, installed files (they count by version), what this program
    keeps."""
    device = name.startswith(_DEVICES) and not name.startswith(_MEMORY)
    if device or name.endswith(".pyc") or is_ours(name) or library_of(name) is not None:
        return True
    kept = (str(home()), os.path.abspath(default_store()))
    return name.startswith(tuple(os.path.join(folder, "") for folder in kept))
