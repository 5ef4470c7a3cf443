"""``evaluate.load("code_eval")``: whether programs that a model wrote pass their tests.

Nothing runs where it is asked. A function that asks is called twice: ``collecting`` notes its programs, the
stage ``execute`` runs them in a sandbox, and ``answering`` gives it their verdicts, found by digest. Many
files ask about a program of their own while they are imported, to see whether they may: outside of both it is
told that nothing passed, and nothing is scored by that.
"""

import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from metrics.errors import ConfigError, NightjarError
from metrics.reductions.pass_at_k import hypergeometric_tail
from scorers.programs import Program, ProgramLimits
from tasks.store.definitions import imported_files

SECONDS: Final = 3.0
"""The library's own limit, unless the caller gives one."""
MEMORY_MB: Final = 4_096
OUTPUT_KB: Final = 16_384
PROCESSES: Final = 64
"""The library limits none of these: they are wide."""
_LOADED = re.compile(r"""\bload\(\s*(?:path\s*=\s*)?["'](?:[\w.-]+/)?code_eval["']""")


class CodeVerdict(NamedTuple):
    """What came of a program: whether it passed, and that in the library's words.

    ``lost`` says why the sandbox could not run it: then nothing is known of it.
    """

    passed: bool
    result: str
    lost: str | None = None


class ProgramLostError(NightjarError):
    """The sandbox could not run a program that a metric asks about."""


Asked = dict[str, Program]
"""Digest → program, in the order in which they were asked about."""

_asked: ContextVar[Asked | None] = ContextVar("asked_programs", default=None)
_known: ContextVar[Mapping[str, CodeVerdict] | None] = ContextVar("known_programs", default=None)
_importing: ContextVar[bool] = ContextVar("importing", default=False)


@contextmanager
def collecting() -> Iterator[Asked]:
    """Inside the block programs are noted and not run; functions are told that none passed."""
    asked: Asked = {}
    token = _asked.set(asked)
    try:
        yield asked
    finally:
        _asked.reset(token)


@contextmanager
def answering(verdicts: Mapping[str, CodeVerdict]) -> Iterator[None]:
    """Inside the block functions are told ``verdicts``; asking about any other program raises ConfigError."""
    token = _known.set(verdicts)
    try:
        yield
    finally:
        _known.reset(token)


@contextmanager
def importing() -> Iterator[None]:
    """Inside the block a file is imported, which may ask about programs for no score."""
    token = _importing.set(True)
    try:
        yield
    finally:
        _importing.reset(token)


def asks_about_programs(function: Callable[..., Any] | None) -> bool:
    """Whether the file of a function, or a file beside it that it imports, loads ``code_eval``."""
    if function is None:
        return False
    try:
        source = inspect.getsourcefile(inspect.unwrap(getattr(function, "func", function)))
    except TypeError:
        return False
    return source is not None and loads_code_eval(Path(source))


def loads_code_eval(path: Path) -> bool:
    """Whether a Python file, or one beside it that it imports, loads ``code_eval``."""
    try:
        return _loads(path.resolve(), path.stat().st_mtime_ns)
    except OSError:
        return False


@cache
def _loads(path: Path, _: int) -> bool:
    texts = (file.read_text(encoding="utf-8", errors="replace") for file in sorted(imported_files(path)))
    return any(_LOADED.search(text) for text in texts)


def program_of(candidate: str, test: str, seconds: float = SECONDS) -> Program:
    """The program that the library runs for a candidate and its test: with the packages of our own
    interpreter, and not as ``__main__``."""
    limits = ProgramLimits(
        seconds=seconds, memory_mb=MEMORY_MB, processes=PROCESSES, output_kb=OUTPUT_KB, disk_mb=64
    )
    return Program(f"{candidate}\n{test}", limits, interpreter=sys.executable, script=False)


def digest_of(program: Program) -> str:
    """Name of a program among those that are asked about, 64 hexadecimal digits."""
    text = f"{program.limits.seconds}\0{program.text}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def code_eval(
    predictions: Sequence[Sequence[str]],
    references: Sequence[str],
    k: int | Sequence[int] = (1, 10, 100),
    num_workers: int = 4,
    timeout: float = SECONDS,
) -> tuple[dict[str, Any], dict[int, list[tuple[int, dict[str, Any]]]]]:
    """The library's ``compute``: pass@k over all tests, and what came of every candidate.

    ``predictions[i]`` are candidates for the test ``references[i]``; a k is left out where a test has fewer.
    ``num_workers`` has no say here.
    """
    verdicts = [
        [_verdict(program_of(candidate, test, float(timeout))) for candidate in candidates]
        for candidates, test in zip(predictions, references, strict=False)
    ]
    results = {
        task: [(place, _result(task, place, verdict)) for place, verdict in enumerate(own)]
        for task, own in enumerate(verdicts)
        if own
    }
    counts = [(len(own), sum(verdict.passed for verdict in own)) for own in verdicts if own]
    levels = [k] if isinstance(k, int) else list(k)
    shares = {
        f"pass@{level}": np.mean([hypergeometric_tail(n, right, level, 1) for n, right in counts])
        for level in levels
        if counts and all(n >= level for n, _ in counts)
    }
    return shares, results


def _result(task: int, place: int, verdict: CodeVerdict) -> dict[str, Any]:
    return {
        "task_id": task,
        "passed": verdict.passed,
        "result": verdict.result,
        "completion_id": place,
    }


def _verdict(program: Program) -> CodeVerdict:
    name, asked, known = digest_of(program), _asked.get(), _known.get()
    if asked is not None:
        asked.setdefault(name, program)
        return CodeVerdict(False, "not run yet")
    if known is None:
        if _importing.get():
            return CodeVerdict(False, "not run")
        raise ConfigError(
            "evaluate.load('code_eval') is answered in metrics and process_results of a benchmark whose own "
            "file loads it by that name; elsewhere use scorer: {type: execution}"
        )
    if name not in known:
        raise ConfigError(
            "evaluate.load('code_eval') is asked about a program that was not asked about before it was to "
            "be run: the function has to ask the same each time (nothing at random, nothing that depends on "
            "a verdict)"
        )
    found = known[name]
    if found.lost is not None:
        raise ProgramLostError(found.lost)
    return found
