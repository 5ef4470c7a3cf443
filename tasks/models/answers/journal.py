"""The journal of answers on local disk: answers are there before anything else is asked in their place, so
that a killed process loses none but what was in flight.

``AnswerWriter`` takes the engine's answers: the journal gets those of a turn of the event loop with one call,
the store every two seconds.
A journal belongs to the process that holds a lock on it; the kernel frees the lock when the process dies,
and the next one reads what it left. A torn last line, all that a kill can leave behind, is passed over and
that request is asked again.
"""

import asyncio
import contextlib
import fcntl
import logging
import math
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from tasks.models.answers.segments import ANSWERS, PLAIN_COLUMNS, ModelAnswers, Segment
from tasks.models.errors import ModelError
from tasks.models.records import READ_FIELDS, STATUS_BEFORE, STATUSES, KeptAnswer
from tasks.store.errors import StoreError
from tasks.store.home import private_folder
from tasks.store.thresholds import Threshold

_log = logging.getLogger(__name__)
FLUSH_SECONDS = 2.0
FLUSH_BYTES = Threshold("bytes_flushed", 8 << 20)
FIELDS = tuple(field.name for field in fields(KeptAnswer) if field.name != "key")
BESIDE_REPLY = tuple(name for name in FIELDS if name not in READ_FIELDS)
"""What is kept of an answer whose reply is kept: the rest is read from that."""


class AnswerWriter:
    """Takes the answers of one run of the engine, and notes by whom each was asked for; of those that do not
    say it yet, also when and in which night.

    What one turn of the loop brings is written at its end, with one call: at hundreds of requests in flight
    a call each would take a tenth of their time. Not thread-safe: one loop uses it.
    """

    def __init__(
        self,
        kept: ModelAnswers,
        journal_dir: Path,
        night: str | None = None,
        asker: str | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._kept = kept
        self._check = check
        """Raises ModelError where answers that are not in the store yet may be another model's."""
        self.asked: dict[str, Any] = {"night": night, "asker": asker}
        """What an answer of this run says of who asked."""
        self._folder = journal_dir / kept.identity[:32]
        self._journal: Journal | None = None
        self._lines: list[bytes] = []
        self._fault: StoreError | None = None
        self._pending: list[KeptAnswer] = []
        self._bytes = 0
        self._segments: list[Segment] = []
        self._busy = asyncio.Lock()

    def append(self, answer: KeptAnswer) -> None:
        """Takes an answer; once the loop has turned no crash of the process loses it. Raises StoreError where
        an earlier one could not be logged."""
        if self._fault is not None:
            raise self._fault
        if not answer.asked_at:
            asked_at = answer.arrived - (answer.inference_time or 0.0)
            answer = replace(answer, asked_at=asked_at, **self.asked)
        elif answer.asker != self.asked["asker"]:
            answer = replace(answer, asker=self.asked["asker"])
        line = encode(answer)
        if not self._lines:
            asyncio.get_running_loop().call_soon(self._log)
        self._lines.append(line)
        self._bytes += len(line)
        self._pending.append(answer)

    async def logged(self) -> None:
        """Returns once the answers so far are logged, which takes a turn of the loop; raises StoreError where
        they could not be."""
        if self._lines:
            await asyncio.sleep(0)
        self._raise_fault()

    def _log(self) -> None:
        """Writes what has come since the last time to the journal; what goes wrong is for the next user of
        the writer."""
        lines, self._lines = self._lines, []
        if not lines:
            return
        try:
            if self._journal is None:
                self._journal = Journal(self._folder)
            self._journal.append(b"".join(lines))
        except StoreError as error:
            self._fault = error

    @property
    def full(self) -> bool:
        """Whether the answers not yet in the store should go there now."""
        return self._bytes >= FLUSH_BYTES

    async def flush(self) -> None:
        """Moves the answers so far to the store, off the loop; raises StoreError, and then the log stays, or
        ModelError, and then nothing of them does."""
        async with self._busy:
            self._log()
            journal, answers = self._journal, self._pending
            if not answers:
                self._raise_fault()
                return
            self._journal, self._pending, self._bytes = None, [], 0
            try:
                await asyncio.to_thread(self._check)
                segment = await asyncio.to_thread(self._kept.write, answers)
            except ModelError:
                if journal is not None:
                    journal.remove()
                raise
            except BaseException:
                if journal is not None:
                    journal.release()
                raise
            self._segments.append(segment)
            if journal is not None:
                journal.remove()
            self._raise_fault()  # what could not be logged is stored all the same

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise self._fault

    async def close(self) -> None:
        """Stores what is left and merges this run's segments."""
        await self.flush()
        if len(self._segments) > 1:
            await asyncio.to_thread(self._kept.merge, self._segments)
            self._segments = []

    def abandon(self) -> None:
        """Leaves the log to the next run, when the store can't be written."""
        self._log()
        if self._journal is not None:
            self._journal.release()
            self._journal = None


def restore(kept: ModelAnswers, journal_dir: Path) -> int:
    """Moves what killed runs left in their journals to the store; returns the number of answers. Raises
    StoreError.
    """
    restored = 0
    for answers, orphan in recover(journal_dir / kept.identity[:32]):
        try:
            if answers:
                kept.write(answers)
        except BaseException:
            orphan.release()
            raise
        orphan.remove()
        restored += len(answers)
    return restored


class _LockedFile:
    """A journal's file under this process's lock."""

    def __init__(self, path: Path, file: int) -> None:
        self.path = path
        self._file = file

    def remove(self) -> None:
        """Deletes the file: all it holds is in the store."""
        self.path.unlink(missing_ok=True)
        os.close(self._file)

    def release(self) -> None:
        """Leaves the file for the next run to read."""
        os.close(self._file)


class Journal(_LockedFile):
    """An append-only file in ``folder``, held by this process until it is removed."""

    def __init__(self, folder: Path) -> None:
        try:
            private_folder(folder)
            super().__init__(*_created(folder))
        except OSError as error:
            raise StoreError(f"can't write answers to {folder}: {error.strerror or error}") from error

    def append(self, lines: bytes) -> None:
        """Writes encoded answers with one call; raises StoreError (a full disk) when they did not get there
        whole."""
        try:
            written = os.write(self._file, lines)
        except OSError as error:
            raise self._unwritable(error.strerror or str(error)) from error
        if written != len(lines):
            raise self._unwritable("the disk is full")

    def _unwritable(self, reason: str) -> StoreError:
        return StoreError(
            f"can't write answers to {self.path}: {reason}. "
            "What was answered before is kept; make room and run again"
        )


def recover(folder: Path) -> Iterator[tuple[list[KeptAnswer], "Orphan"]]:
    """The answers in journals whose processes are gone, file by file; remove each orphan when its answers
    are safe.
    """
    if not folder.is_dir():
        return
    for path in sorted(folder.glob("*.jsonl")):
        orphan = Orphan.adopt(path)
        if orphan is not None:
            yield list(orphan.answers()), orphan


class Orphan(_LockedFile):
    """A journal that a dead process left, now held by this one."""

    @classmethod
    def adopt(cls, path: Path) -> "Orphan | None":
        """Takes the journal over; None when a living process holds it, or it is gone."""
        try:
            file = os.open(path, os.O_RDWR)
        except OSError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return None
        if os.fstat(file).st_nlink == 0:
            os.close(file)
            return None
        return cls(path, file)

    def answers(self) -> Iterator[KeptAnswer]:
        """Every answer whose line is whole. Other lines are set aside in a file beside the journal, which is
        named; a torn last line is what a kill leaves behind, and nothing to speak of.
        """
        with open(os.dup(self._file), "rb") as lines:
            for number, line in enumerate(lines, 1):
                answer = decode(line)
                if answer is not None:
                    yield answer
                elif line.endswith(b"\n"):
                    self._set_aside(number, line)

    def _set_aside(self, number: int, line: bytes) -> None:
        damaged = self.path.with_suffix(".damaged")
        _log.warning("%s:%d holds no answer; the line is set aside in %s", self.path, number, damaged)
        with contextlib.suppress(OSError), damaged.open("ab") as file:
            file.write(line)


def encode(answer: KeptAnswer) -> bytes:
    """A line of JSON with the fields that are set; a log-likelihood that JSON has no number for is a text."""
    row: dict[str, Any] = {"key": answer.key.hex()}
    for name in FIELDS if answer.reply_json is None else BESIDE_REPLY:
        if (value := getattr(answer, name)) is not None:
            row[name] = value
    if answer.ll is not None and not math.isfinite(answer.ll):
        row["ll"] = str(answer.ll)
    return orjson.dumps(row) + b"\n"


def decode(line: bytes) -> KeptAnswer | None:
    """The answer in a line; None when the line is torn."""
    if not line.endswith(b"\n"):
        return None
    try:
        row = orjson.loads(line)
        if not isinstance(row, dict):
            return None
        if isinstance(row.get("ll"), str):
            row["ll"] = float(row["ll"])
        answer = KeptAnswer(**{**row, "key": bytes.fromhex(row["key"])})
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None
    return answer if _is_whole(answer) else None


KEY_BYTES = 32
_STATUSES = frozenset({*STATUSES, STATUS_BEFORE}) - {"infra_error"}
_TYPES: dict[pa.DataType, tuple[type, ...]] = {
    pa.string(): (str,),
    pa.int32(): (int,),
    pa.int64(): (int,),
    pa.float64(): (float, int),
    pa.bool_(): (bool,),
}


def _is_whole(answer: KeptAnswer) -> bool:
    """Whether every field is what a segment takes."""
    if len(answer.key) != KEY_BYTES or answer.status not in _STATUSES:
        return False
    for name in PLAIN_COLUMNS:
        kind, value = ANSWERS.field(name).type, getattr(answer, name)
        if name in ("key", "status") or value is None:
            continue
        types = _TYPES[kind.value_type if pa.types.is_dictionary(kind) else kind]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            return False
        if isinstance(value, int) and pa.types.is_integer(kind) and value.bit_length() >= kind.bit_width:
            return False
    return answer.attempts is not None and answer.arrived is not None


def _created(folder: Path) -> tuple[Path, int]:
    """A new journal under this process's lock."""
    while True:
        path = folder / f"{uuid.uuid4().hex}.jsonl"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file).st_nlink:  # nobody took it for an orphan between the two calls
            return path, file
        os.close(file)
