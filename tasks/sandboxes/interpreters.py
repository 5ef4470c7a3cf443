"""The Pythons that programs run with."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from typing import Final

from metrics.errors import NightjarError

SHARED_PREFIXES: Final = ("/", "/usr", "/usr/local")
OWN_ENVIRONMENT: Final = "/python"
"""Where a sandbox has an environment without packages, for programs that have the standard library alone."""


class SandboxError(NightjarError):
    """No sandbox works here, or an interpreter is not what it should be."""


@dataclass(frozen=True)
class Interpreter:
    """A Python that programs run with: the file that is started, what it is in words, and the folders that it
    needs.

    ``path`` is what a program may import from; of it, ``folders`` have to be readable in a sandbox. ``base``
    is the file of the Python itself; an environment's ``executable`` is a link to it. ``bare``: programs have
    its standard library alone.
    """

    executable: str
    base: str
    about: str
    prefixes: tuple[str, ...]
    path: tuple[str, ...]
    bare: bool

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders on the path that are in those it needs."""
        within = tuple(f"{prefix.rstrip('/')}/" for prefix in self.prefixes)
        return tuple(name for name in self.path if os.path.isdir(name) and f"{name}/".startswith(within))

    @property
    def environment(self) -> bytes:
        """The ``pyvenv.cfg`` of an environment of it that has no packages."""
        home = os.path.dirname(self.base)
        return f"home = {home}\ninclude-system-site-packages = false\n".encode()


@cache
def interpreter_at(executable: str = "") -> Interpreter:
    """What there is to know of a Python, with all packages that it has; by default our own one's, with the
    standard library alone.

    Raises SandboxError where it can't be asked.
    """
    ask = (
        "import json, site, sys; print(json.dumps([sys.version.split()[0], sys.implementation.name, "
        "sys.executable, sys._base_executable or sys.executable, sys.base_prefix, sys.prefix, sys.path, "
        "site.getsitepackages()]))"
    )
    bare = [] if executable else ["-S"]
    command = [executable or sys.executable, "-I", "-B", *bare, "-c", ask]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        version, name, own, base, base_prefix, prefix, path, packages = json.loads(done.stdout)
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
    base = os.path.realpath(base)
    started = base if prefix == base_prefix else _within(own, prefix)
    about = f"{name} {version}" + (f" at {executable}" if executable else "")
    return Interpreter(started, base, about, tuple(shown), tuple(path), not executable)


def _within(executable: str, prefix: str) -> str:
    """The environment's interpreter where a sandbox shows it: below the environment's folder."""
    if executable.startswith(f"{prefix.rstrip('/')}/"):
        return executable
    return os.path.join(prefix, "bin", "python")
