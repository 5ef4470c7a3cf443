"""The sandboxes there are, strongest first: how each is started, and whether it works on this machine.

Each runs ``inside.py`` as the first process of namespaces of its own: no network, no files but the
interpreter, its libraries and a temporary folder, an empty environment. Without any of them programs are not
run.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Protocol

from metrics.errors import NightjarError
from scorers.programs import ProgramLimits

VERSION: Final = 2
"""Enters the keys of kept outcomes: raise it when the same program may end otherwise."""
INSIDE: Final = Path(__file__).with_name("inside.py")
NAMESPACES: Final = Path(__file__).with_name("namespaces.py")
LIBRARIES: Final = ("/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/libx32")
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

    ``path`` is what a program may import from.
    """

    executable: str
    about: str
    prefixes: tuple[str, ...]
    path: tuple[str, ...]


@dataclass(frozen=True)
class Invocation:
    """How one sandbox is started: the command, and what the process inside has to know of it.

    ``uid`` is the user that the program becomes (None: it stays who it is), ``landlock`` the paths that it is
    kept to where the file system is not a view of its own.
    """

    command: Sequence[str]
    uid: int | None
    landlock: dict[str, list[str]] | None = None


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
        return None if shutil.which("bwrap") else "bwrap is not on the PATH: apt-get install bubblewrap"

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
        shown = [folder for folder in (*LIBRARIES, *interpreter.prefixes) if os.path.isdir(folder)]
        parents = {str(parent) for folder in shown for parent in Path(folder).parents} - {"/"}
        for folder in sorted(parents):  # what bubblewrap makes by itself other users can't enter
            command += ["--perms", "0755", "--dir", folder]
        for folder in dict.fromkeys(shown):
            command += ["--ro-bind", folder, folder]
        for link in LINKS:
            if os.path.islink(link):
                command += ["--symlink", os.readlink(link), link]
            elif os.path.isdir(link):
                command += ["--ro-bind", link, link]
        command += ["--ro-bind", str(INSIDE), "/inside.py", "--proc", "/proc", "--dev", "/dev"]
        command += [
            "--perms",
            "1777",
            "--size",
            str(disk_mb << 20),
            "--tmpfs",
            "/tmp",
            "--chdir",
            "/tmp",
        ]
        command += ["--perms", "1777", "--size", str(SHARED_MEMORY), "--tmpfs", "/dev/shm"]
        command += ["--remount-ro", "/dev", "--remount-ro", "/"]  # an ordinary user's own otherwise
        command += ["--", interpreter.executable, *PYTHON, "/inside.py", *arguments]
        return Invocation(command, own_uid() if root else None)


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


class Namespaces:
    """The kernel's own parts: namespaces, Landlock, limits and a system call filter."""

    name = "namespaces"

    def missing(self) -> str | None:
        """See ``Sandbox``."""
        return None if os.path.exists("/proc/self/ns/pid") else "the kernel has no namespaces"

    def start(self, interpreter: Interpreter, limits: ProgramLimits) -> Invocation:
        """See ``Sandbox``."""
        return self._invocation(interpreter, limits.disk_mb)

    def serve(self, interpreter: Interpreter) -> Invocation:
        """See ``Sandbox``."""
        return self._invocation(interpreter, 1, "serve")

    def _invocation(self, interpreter: Interpreter, disk_mb: int, *arguments: str) -> Invocation:
        shown = [*LIBRARIES, *LINKS, *interpreter.prefixes]
        command = [interpreter.executable, *PYTHON, str(NAMESPACES), str(INSIDE), str(disk_mb)]
        devices = [f"/dev/{name}" for name in ("zero", "random", "urandom")]
        landlock = {"read": [*shown, "/proc", *devices], "write": ["/tmp", "/dev/null", "/dev/shm"]}
        uid = own_uid() if os.getuid() == 0 else None
        folders = json.dumps(list(dict.fromkeys(shown)))
        return Invocation([*command, folders, *arguments], uid, landlock)


SANDBOXES: Final[Sequence[Sandbox]] = (Bubblewrap(), Container("docker"), Container("podman"), Namespaces())
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
        "import json, sys; print(json.dumps([sys.version.split()[0], sys.implementation.name, "
        "sys._base_executable or sys.executable, sys.base_prefix, sys.prefix, sys.path]))"
    )
    bare = [] if executable else ["-S"]
    command = [executable or sys.executable, "-I", "-B", *bare, "-c", ask]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        version, name, base, base_prefix, prefix, path = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise SandboxError(f"interpreter {executable}: can't be asked what it is: {error}") from None
    folders = dict.fromkeys(
        form for folder in ([base_prefix, prefix] if executable else [base_prefix])
        for form in (folder, os.path.realpath(folder))
    )  # fmt: skip
    shown = [folder for folder in folders if folder not in SHARED_PREFIXES]
    for folder in set(SHARED_PREFIXES) & set(folders):  # not all of it: its programs and libraries
        shown += [f"{folder}/bin", f"{folder}/lib"]
    about = f"{name} {version}" + (f" at {executable}" if executable else "")
    return Interpreter(os.path.realpath(base), about, tuple(shown), tuple(path))
