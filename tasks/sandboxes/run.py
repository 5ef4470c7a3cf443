"""Runs one program in a sandbox and reads what came of it; which sandboxes there are, strongest first, how
each is started, and whether it works on this machine.

Each runs ``inside.py`` as the first process of namespaces of its own: no network, no files but the
interpreter, its libraries and a temporary folder, an empty environment. Without any of them programs are
not run. What the sandbox itself could not do is a ``sandbox_error`` and says nothing about the program.

Programs are run by fork servers: warm interpreters inside a sandbox that fork for each program. Starting
a sandbox and a Python takes tens of milliseconds of a core, forking a warm one a few. Each program still
has namespaces, a user and a folder of its own: the server only makes them, and runs nothing itself. One
server runs one program at a time; those that are free wait for the next.
"""

import atexit
import json
import os
import secrets
import select
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol

from metrics.errors import NightjarError
from scorers.config import Program, ProgramLimits, ProgramOutcome, ProgramRun, Verdict, outcome_of

VERSION: Final = 3
"""Enters the keys of kept outcomes: raise it when the same program may end otherwise."""
INSIDE: Final = Path(__file__).with_name("inside.py")
LIBRARIES: Final = ("/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/libx32")
TIME_ZONES: Final = "/usr/share/zoneinfo"
LINKS: Final = ("/lib", "/lib64", "/lib32", "/libx32")
"""Links into /usr on merged systems, folders on others."""
PYTHON: Final = ("-I", "-S", "-B", "-X", "utf8")
"""Nothing of the user's, nothing of site-packages, nothing written beside the sources."""
SHARED_MEMORY: Final = 16 << 20
"""Bytes in /dev/shm, where locks of several processes lie."""
FIRST_UID: Final = 1 << 30
"""Users of programs where we are root: numbers that no account has."""
SHARED_PREFIXES: Final = ("/", "/usr", "/usr/local")
IMAGE: Final = "python:3.11-slim"


class SandboxError(NightjarError):
    """No sandbox works here, or an interpreter is not what it should be."""


@dataclass(frozen=True)
class Interpreter:
    """A Python that programs run with: the file, what it is in words, and the folders that it needs.

    ``path`` is what a program may import from; of it, ``folders`` have to be readable in a sandbox.
    """

    executable: str
    about: str
    prefixes: tuple[str, ...]
    path: tuple[str, ...]

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders on the path that lie in those it needs."""
        within = tuple(f"{prefix.rstrip('/')}/" for prefix in self.prefixes)
        return tuple(name for name in self.path if os.path.isdir(name) and f"{name}/".startswith(within))


@dataclass(frozen=True)
class Invocation:
    """How one sandbox is started: the command, and what the process inside has to know of it.

    ``uid`` is the user that the program becomes (None: it stays who it is); ``interpreter`` the one of this
    machine that runs it (None: one of the sandbox's own, with what that may import).
    """

    command: Sequence[str]
    uid: int | None
    interpreter: Interpreter | None = None


class Sandbox(Protocol):
    """One kind of sandbox."""

    name: str

    def start(self, interpreter: Interpreter, limits: ProgramLimits) -> Invocation:
        """The command that runs ``inside.py`` in a sandbox of its own."""
        ...

    def serve(self, interpreter: Interpreter) -> Invocation | None:
        """The command that runs ``inside.py`` as a fork server; None where there is no such form."""
        ...

    def missing(self) -> str | None:
        """What has to be installed or allowed before it can work; None: nothing known."""
        ...


class Bubblewrap:
    """bubblewrap: namespaces for each program, as root or as an ordinary user, without a daemon."""

    name = "bubblewrap"

    def missing(self) -> str | None:
        """See ``Sandbox``."""
        return None if shutil.which("bwrap") else "bwrap is not on the PATH"

    def start(self, interpreter: Interpreter, limits: ProgramLimits) -> Invocation:
        """See ``Sandbox``."""
        return self._invocation(interpreter, limits.disk_mb)

    def serve(self, interpreter: Interpreter) -> Invocation:
        """See ``Sandbox``; it may make namespaces and mounts, which each program's judge gives up."""
        return self._invocation(interpreter, 1, "serve")

    def _invocation(self, interpreter: Interpreter, disk_mb: int, *arguments: str) -> Invocation:
        command = ["bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
        command += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"]
        root = os.getuid() == 0
        if root:
            # A real user of its own, since limits of processes do not hold for root, whatever its namespace.
            command += ["--cap-drop", "ALL"]
            for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_KILL"):
                command += ["--cap-add", capability]
        else:
            command += ["--unshare-user", "--disable-userns", "--uid", "65534", "--gid", "65534"]
        if arguments:
            command += ["--cap-add", "CAP_SYS_ADMIN"]
        # Folders for temporary files first: an interpreter may lie below them.
        command += ["--proc", "/proc", "--dev", "/dev"]
        command += ["--perms", "1777", "--size", str(disk_mb << 20), "--tmpfs", "/tmp", "--chdir", "/tmp"]
        command += ["--perms", "1777", "--size", str(SHARED_MEMORY), "--tmpfs", "/dev/shm"]
        wanted = (*LIBRARIES, TIME_ZONES, *interpreter.prefixes)
        shown = [folder for folder in wanted if os.path.isdir(folder)]
        parents = {str(parent) for folder in shown for parent in Path(folder).parents}
        parents -= {"/", "/dev", "/dev/shm", "/tmp"}
        for folder in sorted(parents):  # what bubblewrap makes by itself other users can't enter
            command += ["--perms", "0755", "--dir", folder]
        for folder in dict.fromkeys(shown):
            command += ["--ro-bind", folder, folder]
        for link in LINKS:
            if os.path.islink(link):
                command += ["--symlink", os.readlink(link), link]
            elif os.path.isdir(link):
                command += ["--ro-bind", link, link]
        command += ["--ro-bind", str(INSIDE), "/inside.py"]
        command += ["--remount-ro", "/dev", "--remount-ro", "/"]  # an ordinary user's own otherwise
        command += ["--", interpreter.executable, *PYTHON, "/inside.py", *arguments]
        return Invocation(command, own_uid() if root else None, interpreter)


class Container:
    """A container engine: a container for each program, from an image that has a Python."""

    def __init__(self, engine: str) -> None:
        self.name = engine

    def missing(self) -> str | None:
        """See ``Sandbox``."""
        if shutil.which(self.name) is None:
            return f"{self.name} is not on the PATH"
        try:
            done = subprocess.run(
                [self.name, "info"], capture_output=True, text=True, timeout=20, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{self.name} does not answer: {error}"
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            return f"{self.name} does not answer: {last}"
        return None

    def start(self, interpreter: Interpreter, limits: ProgramLimits) -> Invocation:
        """See ``Sandbox``; the interpreter is the image's."""
        image = os.environ.get("NIGHTJAR_SANDBOX_IMAGE", IMAGE)
        command = [
            self.name,
            "run",
            "--rm",
            "--interactive",
            "--network",
            "none",
            "--read-only",
            "--user",
            "0",
        ]
        command += ["--tmpfs", f"/tmp:rw,exec,nosuid,mode=1777,size={limits.disk_mb}m", "--workdir", "/tmp"]
        command += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
        for capability in ("SETUID", "SETGID", "KILL"):
            command += ["--cap-add", capability]
        # What runs inside has its limits; these are of the whole, its own process included.
        command += ["--memory", f"{limits.memory_mb + 128}m", "--pids-limit", str(limits.processes + 4)]
        command += ["--volume", f"{INSIDE}:/inside.py:ro", "--entrypoint", "python3", image]
        return Invocation([*command, *PYTHON, "/inside.py"], own_uid() % (1 << 16) + 1_000)

    def serve(self, interpreter: Interpreter) -> None:
        """See ``Sandbox``: what an engine lets a container do makes no further namespaces."""


SANDBOXES: Final[Sequence[Sandbox]] = (Bubblewrap(), Container("docker"), Container("podman"))
"""Strongest first; docker and podman are equals."""


def own_uid() -> int:
    """A user for one program: what another one runs counts towards no limit of its."""
    return FIRST_UID + secrets.randbelow(1 << 28)


@cache
def interpreter_at(executable: str = "") -> Interpreter:
    """What there is to know of a Python, with all packages that it has; by default our own one's, with the
    standard library alone.

    Raises SandboxError where it can't be asked.
    """
    ask = (
        "import json, site, sys; print(json.dumps([sys.version.split()[0], sys.implementation.name, "
        "sys._base_executable or sys.executable, sys.base_prefix, sys.prefix, sys.path, "
        "site.getsitepackages()]))"
    )
    bare = [] if executable else ["-S"]
    command = [executable or sys.executable, "-I", "-B", *bare, "-c", ask]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        version, name, base, base_prefix, prefix, path, packages = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise SandboxError(f"interpreter {executable}: can't be asked what it is: {error}") from None
    folders = dict.fromkeys(
        form for folder in ([base_prefix, prefix] if executable else [base_prefix])
        for form in (folder, os.path.realpath(folder))
    )  # fmt: skip
    shown = [folder for folder in folders if folder not in SHARED_PREFIXES]
    for folder in set(SHARED_PREFIXES) & set(folders):  # not all of it: its programs and libraries
        shown += [f"{folder}/bin", f"{folder}/lib"]
    if executable:  # Debian's has packages in /usr/local, too
        shown += [
            folder for folder in packages if folder in path and not f"{folder}/".startswith(tuple(shown))
        ]
    about = f"{name} {version}" + (f" at {executable}" if executable else "")
    return Interpreter(os.path.realpath(base), about, tuple(shown), tuple(path))


SHOWN: Final = 2_000


class ServerLostError(NightjarError):
    """A fork server gave no answer."""


class ForkServer:
    """One server's process, and the pipes to it."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._jobs, self._answers = process.stdin.fileno(), process.stdout.fileno()

    def ask(self, job: bytes, seconds: float) -> bytes:
        """The result of a job; raises ServerLostError where none comes within ``seconds``."""
        deadline = time.monotonic() + seconds
        try:
            _write(self._jobs, struct.pack(">Q", len(job)) + job)
            (size,) = struct.unpack(">Q", self._read(8, deadline))
            return self._read(size, deadline)
        except OSError as error:
            raise ServerLostError(f"it ended: {error}{self._last_words()}") from None

    def _read(self, size: int, deadline: float) -> bytes:
        parts = []
        while size:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise ServerLostError("it did not answer in time")
            part = os.read(self._answers, min(size, 1 << 20))
            if not part:
                raise ServerLostError(f"it ended{self._last_words()}")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _last_words(self) -> str:
        self.end()
        assert self._process.stderr is not None
        said = self._process.stderr.read().decode("utf-8", "replace").strip()[-SHOWN:]
        return f": {said}" if said else ""

    def end(self) -> None:
        """Ends the server, and with it all that runs in it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Lets a server go that is free: it ends when its stdin does."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self.end()


def _write(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


Key = tuple[int, tuple[str, ...]]
_free: dict[Key, list[ForkServer]] = {}
_lock = threading.Lock()
_starter: tuple[int, ThreadPoolExecutor] | None = None


@contextmanager
def fork_server(invocation: Invocation) -> Iterator[ForkServer]:
    """A server that was started so and is free, or a new one. One in whose block anything is raised is
    ended."""
    key = os.getpid(), tuple(invocation.command)
    with _lock:
        waiting = _free.get(key)
        server = waiting.pop() if waiting else None
    if server is None:
        server = _start(invocation)
    try:
        yield server
    except BaseException:
        server.close()
        raise
    with _lock:
        _free.setdefault(key, []).append(server)


def end_free_servers() -> None:
    """Ends the servers of this process that run nothing."""
    with _lock:
        own = [key for key in _free if key[0] == os.getpid()]
        ended = [server for key in own for server in _free.pop(key)]
    for server in ended:
        server.close()


atexit.register(end_free_servers)


def _start(invocation: Invocation) -> ForkServer:
    """Starts a server from a thread that lives as long as this process: the kernel ends a sandbox with the
    thread that started it."""
    global _starter
    with _lock:
        if _starter is None or _starter[0] != os.getpid():
            _starter = os.getpid(), ThreadPoolExecutor(1, thread_name_prefix="fork-servers")
        starter = _starter[1]
    return ForkServer(starter.submit(_popen, invocation).result())


def _popen(invocation: Invocation) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        invocation.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        cwd="/", env={"PATH": os.environ.get("PATH", os.defpath)}, start_new_session=True, bufsize=0,
    )  # fmt: skip


PATIENCE: Final = 30.0
"""Seconds beyond a program's own that a sandbox may take to start, end and answer."""
_VERDICTS: Final[dict[str, Verdict]] = {
    "done": "passed",
    "failed": "failed",
    "timeout": "timeout",
    "memory": "memory",
    "output": "output",
}
TRIAL: Final = Program("import os\nassert os.getpid() > 1", ProgramLimits(seconds=30))


def run_program(program: Program, sandbox: Sandbox) -> ProgramOutcome:
    """Runs the program, by a fork server where the sandbox has one; what went wrong with the sandbox is in
    the outcome, never raised."""
    interpreter = interpreter_at(program.interpreter)
    served = sandbox.serve(interpreter)
    if served is not None and _works(served, sandbox):
        return _run_served(program, sandbox, served)
    return _run_once(program, sandbox, interpreter)


def _run_once(program: Program, sandbox: Sandbox, interpreter: Interpreter) -> ProgramOutcome:
    """In a sandbox and an interpreter that are started for it."""
    invocation = sandbox.start(interpreter, program.limits)
    try:
        process = subprocess.Popen(
            invocation.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            cwd="/", env={"PATH": os.environ.get("PATH", os.defpath)}, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return _no_answer(sandbox, f"it could not be started: {error}")
    try:
        job = _job(program, invocation, invocation.uid)
        out, err = process.communicate(job, _patience(program))
    except subprocess.TimeoutExpired:
        _end(process)
        return _no_answer(sandbox, "it did not answer in time")
    except BaseException:
        _end(process)
        raise
    said = err.decode("utf-8", "replace").strip()[-SHOWN:]
    return _read(program, sandbox, out, f"it ended with exit code {process.returncode}: {said or 'no word'}")


def _run_served(program: Program, sandbox: Sandbox, invocation: Invocation) -> ProgramOutcome:
    """In namespaces of its own that a fork server makes for it."""
    job = _job(program, invocation, None if invocation.uid is None else own_uid())
    try:
        with fork_server(invocation) as server:
            out = server.ask(job, _patience(program))
    except (ServerLostError, OSError) as error:
        return _no_answer(sandbox, str(error))
    return _read(program, sandbox, out, out.decode("utf-8", "replace").strip()[-SHOWN:] or "no word")


_worked: dict[tuple[str, ...], bool] = {}


def _works(served: Invocation, sandbox: Sandbox) -> bool:
    """Whether a fork server works here: a program was run by one. Tried once a process."""
    command = tuple(served.command)
    if command not in _worked:
        _worked[command] = _run_served(TRIAL, sandbox, served).verdict == "passed"
    return _worked[command]


def _job(program: Program, invocation: Invocation, uid: int | None) -> bytes:
    job = {
        "program": program.text,
        "inputs": program.inputs,
        "limits": program.limits.model_dump(),
        "path": list(invocation.interpreter.path) if invocation.interpreter else [],
        "folders": list(invocation.interpreter.folders) if invocation.interpreter else [],
        "script": program.script,
        "uid": uid,
    }
    return json.dumps(job).encode()


def _patience(program: Program) -> float:
    runs = len(program.inputs) if program.inputs is not None else 1
    return runs * program.limits.seconds + PATIENCE


def _end(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _read(program: Program, sandbox: Sandbox, out: bytes, otherwise: str) -> ProgramOutcome:
    """The outcome that a judge told; ``otherwise`` says what happened where it told none."""
    try:
        runs = tuple(_run(entry) for entry in json.loads(out)["runs"])
    except (ValueError, KeyError, TypeError):
        return _no_answer(sandbox, otherwise)
    broken = next((run for run in runs if run.verdict == "sandbox_error"), None)
    if broken is not None:
        return _no_answer(sandbox, broken.stderr[-SHOWN:] or "the program never began")
    return outcome_of(program, runs, sandbox.name)


def _run(entry: dict[str, Any]) -> ProgramRun:
    return ProgramRun(
        verdict=_VERDICTS[entry["ended"]] if entry["begun"] else "sandbox_error",
        exit_code=entry["exit_code"],
        signal=entry["signal"],
        cpu_seconds=entry["cpu_seconds"],
        wall_seconds=entry["wall_seconds"],
        stdout=entry["stdout"],
        stderr=entry["stderr"],
    )


def _no_answer(sandbox: Sandbox, reason: str) -> ProgramOutcome:
    return ProgramOutcome("sandbox_error", sandbox=sandbox.name, error=f"sandbox {sandbox.name}: {reason}")


@cache
def trouble(name: str) -> str | None:
    """Why the sandbox of that name does not work here; None: it does, a program was run in it. Tried once a
    process."""
    sandbox = next(entry for entry in SANDBOXES if entry.name == name)
    missing = sandbox.missing()
    if missing is not None:
        return missing
    outcome = run_program(TRIAL, sandbox)
    if outcome.error is not None:
        return outcome.error
    if outcome.verdict == "passed":
        return None
    return f"a trial ended {outcome.verdict}: {outcome.stderr[-SHOWN:]}"


def chosen_sandbox() -> Sandbox:
    """The strongest sandbox that works here.

    Raises SandboxError that says of each why not, and what to install: programs are never run without one.
    """
    for sandbox in SANDBOXES:
        if trouble(sandbox.name) is None:
            return sandbox
    reasons = "; ".join(f"{sandbox.name}: {trouble(sandbox.name)}" for sandbox in SANDBOXES)
    raise SandboxError(
        f"programs run in a sandbox only, and none works here ({reasons}). Install one: {install_command()}"
    )


INSTALLERS: Final = {
    "apt-get": "apt-get install bubblewrap",
    "dnf": "dnf install bubblewrap",
    "apk": "apk add bubblewrap",
    "pacman": "pacman -S bubblewrap",
    "zypper": "zypper install bubblewrap",
}


def install_command() -> str:
    """What installs bubblewrap here, by the package manager that is there."""
    found = (command for manager, command in INSTALLERS.items() if shutil.which(manager))
    return next(found, INSTALLERS["apt-get"])
