"""Anthropic's Message Batches: the requests are the body of the job itself.

A job bears no mark of ours. It is found again by the time when it was made and by how many requests it has,
and known for sure by the ids of its rows once it has ended.
"""

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any, Final

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
from tasks.models.http import HttpTransport
from tasks.models.records import Call
from tasks.models.wire import json_object

PLACE: Final = "messages/batches"
COUNTS: Final = ("processing", "succeeded", "errored", "canceled", "expired")
STATUSES: Final[Mapping[str, int]] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "overloaded_error": 529,
}
"""The status that a single request would have had for a type of error; 500 for others."""


class AnthropicBatches(BatchForm):
    """``/messages/batches``."""

    most_requests = 100_000
    most_bytes = 256_000_000
    opening, between, closing = b'{"requests":[', b",", b"]}"
    uploads = False
    marks = False

    def line(self, id: str, call: Call) -> bytes:
        """The body of the call."""
        return json_bytes({"custom_id": id, "params": dict(call.body)})

    async def create(self, http: HttpTransport, sent: SentFile) -> str:
        """Posts all requests."""
        with sent.local.open("rb") as file:
            body, _ = await http.exchange("POST", PLACE, FILE_SECONDS, file)
        return id_of(body)

    async def find(self, http: HttpTransport, sought: Sought) -> str | None:
        """Of the jobs that have as many requests, and are no others of ours, the one made next to the
        intent."""
        found, after = dict[str, float](), ""
        while True:
            page, _ = await http.exchange("GET", f"{PLACE}?limit={LISTED}{after}", JOB_SECONDS)
            jobs = listed(page, "data")
            recent = [job for job in jobs if _made(job) >= sought.created - SKEW_SECONDS]
            for job in recent:
                same = counted(job.get("request_counts"), *COUNTS) == sought.count
                if same and id_of(job) not in sought.others:
                    found[id_of(job)] = abs(_made(job) - sought.created)
            if not page.get("has_more") or len(recent) < len(jobs) or not jobs:
                return min(found, key=found.__getitem__, default=None)
            after = f"&after_id={id_of(jobs[-1])}"

    async def look(self, http: HttpTransport, id: str) -> JobStatus:
        """Results are there once all requests have one."""
        job, _ = await http.exchange("GET", f"{PLACE}/{id}", JOB_SECONDS)
        done = counted(job.get("request_counts"), *COUNTS[1:])
        return JobStatus("ended" if job.get("processing_status") == "ended" else "running", done)

    async def rows(
        self, http: HttpTransport, id: str, status: JobStatus
    ) -> AsyncIterator[Row | MalformedBody]:
        """At the address of the job: the one that it names may be another's, who would get the key."""
        async for row in http.lines(f"{PLACE}/{id}/results", FILE_SECONDS, _row):
            yield row

    async def cancel(self, http: HttpTransport, id: str) -> None:
        """What is under way is still answered."""
        await http.exchange("POST", f"{PLACE}/{id}/cancel", JOB_SECONDS)


def _row(line: bytes) -> Row:
    """What a line of results says; raises MalformedBody."""
    row = json_object(line, "a row of the batch")
    name, result = str(row.get("custom_id")), row.get("result")
    result = result if isinstance(result, Mapping) else {}
    if result.get("type") == "succeeded":
        return Row(name, 200, json_bytes(result.get("message")))
    if result.get("type") == "errored":
        return Row(name, _status(result.get("error")), json_bytes(result.get("error")))
    return Row(name, NOT_ASKED)


def _made(job: Mapping[str, Any]) -> float:
    """When a job was made, in seconds since 1970."""
    try:
        return datetime.fromisoformat(str(job.get("created_at"))).timestamp()
    except ValueError:
        raise MalformedBody(f"a batch says no time at which it was made: {job.get('created_at')!r}") from None


def _status(error: Any) -> int:
    inner = error.get("error") if isinstance(error, Mapping) else None
    return STATUSES.get(str(inner.get("type")), 500) if isinstance(inner, Mapping) else 500
