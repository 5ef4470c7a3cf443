"""Keeps answers as they come: the journal at once, the store every two seconds."""

import asyncio
from pathlib import Path

from tasks.models.answers import Segment, Shelf
from tasks.models.journal import Journal, recover
from tasks.models.records import Answer

FLUSH_SECONDS = 2.0
FLUSH_BYTES = 8 << 20


class AnswerWriter:
    """Takes the answers of one run of the engine. Not thread-safe: one loop uses it."""

    def __init__(self, shelf: Shelf, journal_dir: Path) -> None:
        self._shelf = shelf
        self._folder = journal_dir / shelf.identity[:32]
        self._journal: Journal | None = None
        self._pending: list[Answer] = []
        self._bytes = 0
        self._segments: list[Segment] = []
        self._busy = asyncio.Lock()

    def append(self, answer: Answer) -> None:
        """Logs an answer; from here on no crash of the process loses it. Raises StoreError."""
        if self._journal is None:
            self._journal = Journal(self._folder)
        self._bytes += self._journal.append(answer)
        self._pending.append(answer)

    @property
    def full(self) -> bool:
        """Whether the answers not yet in the store should go there now."""
        return self._bytes >= FLUSH_BYTES

    async def flush(self) -> None:
        """Moves the answers logged so far to the store, off the loop; raises StoreError, and then the log
        stays.
        """
        async with self._busy:
            journal, answers = self._journal, self._pending
            if journal is None:
                return
            self._journal, self._pending, self._bytes = None, [], 0
            try:
                segment = await asyncio.to_thread(self._shelf.write, answers)
            except BaseException:
                journal.release()
                raise
            self._segments.append(segment)
            journal.remove()

    async def close(self) -> None:
        """Stores what is left and merges this run's segments."""
        await self.flush()
        if len(self._segments) > 1:
            await asyncio.to_thread(self._shelf.merge, self._segments)
            self._segments = []

    def abandon(self) -> None:
        """Leaves the log to the next run, when the store can't be written."""
        if self._journal is not None:
            self._journal.release()
            self._journal = None


def restore(shelf: Shelf, journal_dir: Path) -> int:
    """Moves what killed runs left in their journals to the store; returns the number of answers. Raises
    StoreError.
    """
    restored = 0
    for answers, orphan in recover(journal_dir / shelf.identity[:32]):
        try:
            if answers:
                shelf.write(answers)
        except BaseException:
            orphan.release()
            raise
        orphan.remove()
        restored += len(answers)
    return restored
