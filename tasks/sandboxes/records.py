"""A program to be run in a sandbox, the limits that hold, and what came of it."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from metrics.errors import NightjarError
from tasks.store.keys import canonical_json

VERSION: Final = 1
"""Enters the keys of kept outcomes: raise it when the same program may end otherwise."""

Verdict = Literal["passed", "failed", "timeout", "memory", "output", "sandbox_error"]


class SandboxError(NightjarError):
    """No sandbox is there, or it did not say how a program ended."""


class Limits(BaseModel):
    """What one run of a program may take; the numbers hold for all its processes together, ``processes`` for
    processes and threads."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seconds: float = Field(10.0, gt=0, le=3_600, description="Wall-clock time of a run, and its CPU time")
    memory_mb: int = Field(1_024, ge=64, description="Memory")
    processes: int = Field(16, ge=1, description="Processes and threads at once")
    output_kb: int = Field(256, ge=1, le=65_536, description="What it may print, stdout and stderr together")
    disk_mb: int = Field(64, ge=1, description="Its temporary folder")


@dataclass(frozen=True)
class Program:
    """A Python program, and how it is judged.

    Without ``inputs`` it has passed when it reached its last line. With them each is the stdin of a run of its
    own, and what the runs printed is compared by the caller: expected outputs never come near the program.
    ``interpreter`` is the Python that runs it.
    """

    text: str
    limits: Limits
    inputs: tuple[str, ...] | None = None
    interpreter: str = ""

    def digest(self, interpreter: str) -> bytes:
        """The key of its outcome, 32 bytes; ``interpreter`` says which one it is, with its version."""
        limits = self.limits.model_dump(mode="json")
        texts = [self.text, *(self.inputs or ())]
        about = [VERSION, limits, interpreter, self.inputs is None, [len(text) for text in texts]]
        total = hashlib.sha256(canonical_json(about))
        for text in texts:
            total.update(text.encode("utf-8", "surrogatepass"))  # models write halves of characters, too
        return total.digest()


@dataclass(frozen=True)
class ProgramRun:
    """How one run ended.

    ``verdict`` is passed where the program reached its end within the limits: of a run with input that says
    nothing about what it printed. ``cpu_seconds`` sums all its processes; ``stdout`` and ``stderr`` are cut
    where the limit was.
    """

    verdict: Verdict
    exit_code: int | None = None
    signal: int | None = None
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    stdout: str = ""
    stderr: str = ""


@dataclass(frozen=True)
class Outcome:
    """What came of a program: a run for each input (one without inputs), as far as it got, and the sandbox
    that ran it. ``error`` says why the sandbox could not."""

    runs: tuple[ProgramRun, ...]
    sandbox: str
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """As it is kept."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Outcome":
        """The inverse of ``as_dict``."""
        return cls(tuple(ProgramRun(**run) for run in value["runs"]), value["sandbox"], value["error"])
