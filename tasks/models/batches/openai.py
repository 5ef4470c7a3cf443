"""OpenAI's batches, which other servers have too: a file of requests is uploaded, and a job made of it.

A job is found again by its metadata, or by its file where a server keeps no metadata.
"""

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from tasks.models.batches.form import (
    FILE_SECONDS,
    JOB_SECONDS,
    LISTED,
    NOT_ASKED,
    SKEW_SECONDS,
    BatchForm,
    JobStatus,
    Row,
    SentFile,
    Sought,
    counted,
    id_of,
    json_bytes,
    listed,
)
from tasks.models.errors import MalformedBody
from tasks.models.records import Call
from tasks.models.usage import text_or_none

if TYPE_CHECKING:
    from tasks.models.http import HttpTransport

MARK: Final = "nightjar"
"""Under which name a job's metadata holds its name here."""
WINDOW: Final = "24h"
"""The only window that OpenAI takes."""
ENDED: Final = frozenset({"completed", "expired", "cancelled"})


class OpenAIBatches(BatchForm):
    """``/files`` and ``/batches``."""

    most_requests = 50_000
    most_bytes = 200_000_000

    def line(self, id: str, call: Call) -> bytes:
        """Names the path from ``/v1`` on, whatever stands before it."""
        return openai_line(id, call)

    async def upload(self, http: "HttpTransport", sent: SentFile) -> str | None:
        """As a form with the purpose ``batch``."""
        import aiohttp

        with sent.local.open("rb") as file:
            form = aiohttp.FormData()
            form.add_field("purpose", "batch")
            form.add_field("file", file, filename=f"{sent.name}.jsonl", content_type="application/jsonl")
            data = form()
            headers = {"Content-Type": data.headers["Content-Type"]}
            body, _ = await http.exchange("POST", "files", FILE_SECONDS, data, headers)
        return id_of(body)

    async def create(self, http: "HttpTransport", sent: SentFile) -> str:
        """With the job's name in its metadata."""
        job = {
            "input_file_id": sent.file,
            "endpoint": f"/v1/{sent.path}",
            "completion_window": WINDOW,
            "metadata": {MARK: sent.name},
        }
        body, _ = await http.exchange("POST", "batches", JOB_SECONDS, json_bytes(job))
        return id_of(body)

    async def find(self, http: "HttpTransport", sought: Sought) -> str | None:
        """The newest jobs come first: the search ends where they are older than the intent."""
        after = ""
        while True:
            page, _ = await http.exchange("GET", f"batches?limit={LISTED}{after}", JOB_SECONDS)
            jobs = listed(page, "data")
            for job in jobs:
                marks = job.get("metadata")
                marked = isinstance(marks, Mapping) and marks.get(MARK) == sought.name
                made_of = sought.file is not None and job.get("input_file_id") == sought.file
                if (marked or made_of) and id_of(job) not in sought.others:
                    return id_of(job)
            made = [job["created_at"] for job in jobs if isinstance(job.get("created_at"), int | float)]
            if not page.get("has_more") or not jobs or min(made, default=0) < sought.created - SKEW_SECONDS:
                return None
            after = f"&after={id_of(jobs[-1])}"

    async def look(self, http: "HttpTransport", id: str) -> JobStatus:
        """Its files are there once it has ended."""
        job, _ = await http.exchange("GET", f"batches/{id}", JOB_SECONDS)
        done = counted(job.get("request_counts"), "completed", "failed")
        state = job.get("status")
        if state == "failed":
            return JobStatus("failed", done, said=_reason(job))
        files = (text_or_none(job.get(name)) for name in ("output_file_id", "error_file_id"))
        return JobStatus("ended" if state in ENDED else "running", done, tuple(filter(None, files)))

    async def rows(
        self, http: "HttpTransport", id: str, status: JobStatus
    ) -> AsyncIterator[Row | MalformedBody]:
        """Of the file of answers and of that of errors."""
        for file in status.files:
            async for row in http.lines(f"files/{file}/content", FILE_SECONDS, openai_row):
                yield row

    async def cancel(self, http: "HttpTransport", id: str) -> None:
        """It ends within minutes."""
        await http.exchange("POST", f"batches/{id}/cancel", JOB_SECONDS)


def openai_line(id: str, call: Call) -> bytes:
    """A request as a line of a file."""
    body = dict(call.body)
    return json_bytes({"custom_id": id, "method": "POST", "url": f"/v1/{call.path}", "body": body})


def openai_row(line: bytes) -> Row:
    """What a line of a file of results says; raises MalformedBody."""
    from tasks.models.wire import json_object

    row = json_object(line, "a row of the batch")
    name, reply = str(row.get("custom_id")), row.get("response")
    if isinstance(reply, Mapping) and isinstance(reply.get("status_code"), int):
        return Row(name, reply["status_code"], json_bytes(reply.get("body")))
    return Row(name, NOT_ASKED)


def _reason(job: Mapping[str, Any]) -> str:
    errors = job.get("errors")
    found = listed(errors, "data") if isinstance(errors, Mapping) else []
    return str(found[0].get("message") or found[0]) if found else "it says no reason"
