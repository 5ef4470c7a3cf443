"""Files for ``vllm run-batch``: a job is a file of requests in a folder, and a person runs the command that
answers them.

A file appears whole, under the job's name. Its results are read once the command has written all of them.
"""

import shlex
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.models.batches.form import BatchForm, JobStatus, Row, SentFile, Sought
from tasks.models.batches.openai import openai_line, openai_row
from tasks.models.errors import MalformedBody, ModelError, NotServed
from tasks.models.records import Call
from tasks.store.home import FileUnwritable, whole_file

if TYPE_CHECKING:
    from tasks.models.http import HttpTransport


@dataclass(frozen=True)
class FileBatches(BatchForm):
    """A folder on this machine, and the model that the command is to load."""

    folder: Path
    model: str

    most_requests = 100_000  # with more, a job's record becomes large
    most_bytes = 2_000_000_000
    uploads = False
    by_hand = True

    def line(self, id: str, call: Call) -> bytes:
        """As OpenAI has it."""
        return openai_line(id, call)

    async def create(self, _http: "HttpTransport", sent: SentFile) -> str:
        """Writes the file; raises ModelError where that can't be."""
        place = self._requests(sent.name)
        try:
            with whole_file(place) as copy:
                shutil.copyfile(sent.local, copy)
        except FileUnwritable as error:
            raise ModelError(f"config.batch.files: {error}") from error
        return sent.name

    async def find(self, _http: "HttpTransport", sought: Sought) -> str | None:
        """By its name."""
        return sought.name if self._requests(sought.name).exists() else None

    async def look(self, _http: "HttpTransport", id: str) -> JobStatus:
        """It has ended when each request has a row. Raises NotServed where its files are gone."""
        asked, done = self._requests(id), self._results(id)
        if not asked.exists():
            raise NotServed(f"{asked} is gone", absent=True)
        count = _lines(done) if done.exists() else 0
        return JobStatus("ended" if count >= _lines(asked) else "running", count)

    async def rows(self, _http: "HttpTransport", id: str, _status: JobStatus) -> AsyncIterator[Row]:
        """Of the file of results; raises ModelError, which names the line, for one that is none."""
        place = self._results(id)
        with place.open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    row = openai_row(line)
                except MalformedBody as error:
                    raise ModelError(
                        f"{place}: line {number}: {error}; remove the file, and run the command again"
                    ) from error
                yield row

    async def cancel(self, _http: "HttpTransport", id: str) -> None:
        """Nothing: who began the command ends it."""

    def command(self, id: str) -> str:
        """What answers the requests."""
        places = (str(self._requests(id)), "-o", str(self._results(id)))
        return shlex.join(("vllm", "run-batch", "-i", *places, "--model", self.model))

    def _requests(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"

    def _results(self, name: str) -> Path:
        return self.folder / f"{name}.results.jsonl"


def _lines(place: Path) -> int:
    """Lines that have ended."""
    with place.open("rb") as file:
        return sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b""))
