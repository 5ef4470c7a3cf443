"""Which sandboxes there are, strongest first, and the command that starts a program in each.

A program is a plain ``python program.py`` in namespaces of its own: no network, no files but the
interpreter, its libraries and folders for temporary files, an environment with nothing in it. Nothing of
the judge is inside. Where programs are sandboxed by bubblewrap, a user's own are those of a user namespace;
where we are root, each program becomes a user that no account has, since limits of processes do not hold
for root.
"""

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from scorers.config import ProgramLimits
from tasks.sandboxes.filter import UnknownMachineError, system_call_filter
from tasks.sandboxes.groups import group_for_programs
from tasks.sandboxes.interpreters import OWN_ENVIRONMENT, Interpreter
from tasks.sandboxes.judge import BEGUN, INODES_PER_MB, TICK, rlimits
from tasks.store.home import variable

LIBRARIES: Final = ("/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/libx32")
TIME_ZONES: Final = "/usr/share/zoneinfo"
LINKS: Final = ("/lib", "/lib64", "/lib32", "/libx32")
"""Links into /usr on merged systems, folders on others."""
SHARED_MB: Final = 16
"""Megabytes in /dev/shm, where locks of several processes lie."""
FIRST_UID: Final = 1 << 30
"""Users of programs where we are root: numbers that no account has."""
IMAGE: Final = "python:3.11-slim"
ENVIRONMENT: Final = {
    "PATH": "/usr/bin:/bin", "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",  # libraries of numbers start a thread a core otherwise
}  # fmt: skip
COUNTED: Final = f"files and folders are counted every {1_000 * TICK:.0f} ms: bubblewrap can't limit inodes"
SUMMED: Final = (
    f"memory is summed every {1_000 * TICK:.0f} ms over a program's processes, and what the kernel holds for "
    "them (pipes, sockets) is not counted: there is no control group (cgroup v2) that we may divide"
)


@dataclass(frozen=True)
class Invocation:
    """How one program is started.

    In ``command`` the entries ``@status`` and ``@block`` stand for bubblewrap's, ``@NAME`` for a file that
    holds ``data[NAME]``. ``stop`` ends what was started. ``own_processes`` of the sandbox count beside the
    program's; ``group`` is the control group that its own is made in. ``judge`` starts the judge (default:
    as ourselves).
    """

    command: Sequence[str]
    data: Mapping[str, bytes] = field(default_factory=dict)
    stop: Sequence[str] = ()
    own_processes: int = 0
    group: str | None = None
    judge: tuple[str, ...] = ()


class Sandbox(Protocol):
    """One kind of sandbox."""

    @property
    def name(self) -> str:
        """What a row says that ran its program."""
        ...

    def start(self, interpreter: Interpreter, limits: ProgramLimits, text: bytes) -> Invocation:
        """The command that runs the program of that text in a sandbox of its own."""
        ...

    def missing(self) -> str | None:
        """What has to be installed or allowed before it can work; None: nothing known."""
        ...

    def not_enforced(self) -> str | None:
        """Which limits hold less on this machine than they could; None: none."""
        ...


class Bubblewrap:
    """bubblewrap: namespaces for each program, as root or as an ordinary user, without a daemon."""

    name = "bubblewrap"

    def missing(self) -> str | None:
        """See ``Sandbox``."""
        if shutil.which("bwrap") is None:
            return "bwrap is not on the PATH"
        if os.getuid() == 0 and shutil.which("setpriv") is None:
            return (
                "setpriv (of util-linux) is not on the PATH: as root programs get a user of their own by it"
            )
        try:
            system_call_filter()
        except UnknownMachineError as error:
            return str(error)
        return None

    def not_enforced(self) -> str | None:
        """See ``Sandbox``."""
        return COUNTED if group_for_programs() is not None else f"{SUMMED}; {COUNTED}"

    def start(self, interpreter: Interpreter, limits: ProgramLimits, text: bytes) -> Invocation:
        """See ``Sandbox``."""
        data = {"program": text, "filter": system_call_filter(), "environment": interpreter.environment}
        root = os.getuid() == 0
        command = ["bwrap", *self._apart(root), *self._folders(interpreter, limits.disk_mb, root)]
        command += ["--perms", "0666", "--file", "@program", "/tmp/program.py", "--chdir", "/tmp"]
        for name, value in ENVIRONMENT.items():
            command += ["--setenv", name, value]
        python = interpreter.executable
        if interpreter.bare:
            python = f"{OWN_ENVIRONMENT}/bin/python"
            command += ["--symlink", interpreter.base, python]
            command += ["--perms", "0644", "--file", "@environment", f"{OWN_ENVIRONMENT}/pyvenv.cfg"]
        else:
            del data["environment"]
        command += ["--remount-ro", "/dev", "--remount-ro", "/"]  # an ordinary user's own otherwise
        command += ["--json-status-fd", "@status", "--block-fd", "@block", "--seccomp", "@filter", "--"]
        if root:
            uid = str(own_uid())
            command += [_setpriv(), "--reuid", uid, "--regid", uid, "--clear-groups", "--"]
        group = group_for_programs()
        return Invocation([*command, python, "program.py"], data, own_processes=1 - root, group=group)

    def _apart(self, root: bool) -> list[str]:
        options = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        options += ["--die-with-parent", "--new-session", "--clearenv"]
        if not root:
            return [*options, "--unshare-user", "--uid", "65534", "--gid", "65534"]
        return [*options, "--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]

    def _folders(self, interpreter: Interpreter, disk_mb: int, root: bool) -> list[str]:
        # Folders for temporary files first: an interpreter may lie below them.
        options = ["--proc", "/proc", "--dev", "/dev"]
        options += ["--perms", "0777", "--size", str(disk_mb << 20), "--tmpfs", "/tmp"]
        options += ["--perms", "1777", "--size", str(SHARED_MB << 20), "--tmpfs", "/dev/shm"]
        wanted = (*LIBRARIES, TIME_ZONES, *interpreter.prefixes)
        shown = [folder for folder in wanted if os.path.isdir(folder)]
        if root and "/usr/bin" not in shown:
            shown.append(_setpriv())
        parents = {str(parent) for folder in shown for parent in Path(folder).parents}
        if interpreter.bare:
            parents |= {OWN_ENVIRONMENT, f"{OWN_ENVIRONMENT}/bin"}
        parents -= {"/", "/dev", "/dev/shm", "/tmp"}
        for folder in sorted(parents):  # what bubblewrap makes by itself other users can't enter
            options += ["--perms", "0755", "--dir", folder]
        for folder in dict.fromkeys(shown):
            options += ["--ro-bind", folder, folder]
        for link in LINKS:
            if os.path.islink(link):
                options += ["--symlink", os.readlink(link), link]
            elif os.path.isdir(link):
                options += ["--ro-bind", link, link]
        return options


def _setpriv() -> str:
    return os.path.realpath(shutil.which("setpriv") or "/usr/bin/setpriv")


LAUNCHER: Final = """\
import os, resource, sys
for kind, value in {limits}.items():
    resource.setrlimit(getattr(resource, kind), (value, value))
left = {size}
with open("program.py", "wb") as file:
    while left and (part := os.read(0, min(left, 1 << 20))):
        left -= file.write(part)
os.write(2, {begun!r})
os.execv(sys.executable, [sys.executable, "program.py"])
"""


"""What a container starts with, before it becomes the program: the limits that engines have no option for,
and the program's file, which comes on stdin before what the program reads there."""


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

    def not_enforced(self) -> str | None:
        """See ``Sandbox``; the engine has control groups."""
        return None

    def start(self, interpreter: Interpreter, limits: ProgramLimits, text: bytes) -> Invocation:
        """See ``Sandbox``; the interpreter is the image's."""
        name, uid = f"nightjar-{secrets.token_hex(8)}", own_uid() % (1 << 16) + 1_000
        room = f"rw,exec,nosuid,nodev,mode=1777,nr_inodes={limits.disk_mb * INODES_PER_MB}"
        command = [self.name, "run", "--rm", "--interactive", "--init", "--name", name]
        command += ["--network", "none", "--read-only", "--user", f"{uid}:{uid}"]
        command += ["--tmpfs", f"/tmp:{room},size={limits.disk_mb}m", "--workdir", "/tmp"]
        command += ["--shm-size", f"{SHARED_MB}m", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
        most = limits.memory_mb + limits.disk_mb + SHARED_MB
        command += ["--memory", f"{most}m", "--memory-swap", f"{most}m"]
        command += ["--pids-limit", str(limits.processes + 1)]
        for key, value in ENVIRONMENT.items():
            command += ["--env", f"{key}={value}"]
        held = json.dumps(rlimits(limits.model_dump()))
        launcher = LAUNCHER.format(limits=held, size=len(text), begun=BEGUN)
        image = variable("NIGHTJAR_SANDBOX_IMAGE") or IMAGE
        command += ["--entrypoint", "python3", image, "-I", "-S", "-c", launcher]
        return Invocation(command, {"before_stdin": text}, stop=[self.name, "rm", "--force", name])


SANDBOXES: Final[Sequence[Sandbox]] = (Bubblewrap(), Container("docker"), Container("podman"))
"""Strongest first; docker and podman are equals."""


def own_uid() -> int:
    """A user for one program: what another one runs counts towards no limit of its."""
    return FIRST_UID + secrets.randbelow(1 << 28)
