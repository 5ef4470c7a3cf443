"""Gemini's batches: a file of requests is uploaded, and a job made of it that bears our name."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from tasks.models.batches.form import (
    FILE_SECONDS,
    JOB_SECONDS,
    LISTED,
    NOT_ASKED,
    BatchForm,
    JobStatus,
    Row,
    SentFile,
    Sought,
    counted,
    json_bytes,
    listed,
)
from tasks.models.errors import MalformedBody
from tasks.models.http import HttpTransport
from tasks.models.records import Call
from tasks.models.wire import json_object

JSON_LINES: Final = "application/jsonl"
ENDED: Final = ("SUCCEEDED", "CANCELLED", "EXPIRED")
"""How the names of its last states end, but that of a failure; BATCH_STATE or JOB_STATE stands before."""
DONE: Final = ("successfulRequestCount", "failedRequestCount")


class GeminiBatches(BatchForm):
    """``batchGenerateContent`` with a file of requests."""

    most_requests = 100_000  # the API names no number; with more, a job's record becomes large
    most_bytes = 2_000_000_000

    def line(self, id: str, call: Call) -> bytes:
        """The body of the call."""
        return json_bytes({"key": id, "request": dict(call.body)})

    async def upload(self, http: HttpTransport, sent: SentFile) -> str | None:
        """In two steps: the address for the file is asked for first."""
        size = str(sent.local.stat().st_size)
        about = {
            "X-Goog-Upload-Protocol": "resumable",
            "X-Goog-Upload-Command": "start",
            "X-Goog-Upload-Header-Content-Length": size,
            "X-Goog-Upload-Header-Content-Type": JSON_LINES,
        }
        named = json_bytes({"file": {"display_name": sent.name}})
        place = beside(http.base_url, "upload", "files")
        _, headers = await http.exchange("POST", place, JOB_SECONDS, named, about)
        target = headers.get("X-Goog-Upload-URL")
        if target is None:
            raise MalformedBody("the reply to an upload names no address for the file")
        whole = {"X-Goog-Upload-Offset": "0", "X-Goog-Upload-Command": "upload, finalize"}
        with sent.local.open("rb") as file:
            body, _ = await http.exchange("POST", target, FILE_SECONDS, file, whole)
        return _name(body.get("file"))

    async def create(self, http: HttpTransport, sent: SentFile) -> str:
        """With our name as its display name."""
        job = {"batch": {"display_name": sent.name, "input_config": {"file_name": sent.file}}}
        place = f"{sent.path.partition(':')[0]}:batchGenerateContent"
        body, _ = await http.exchange("POST", place, JOB_SECONDS, json_bytes(job))
        return _name(body)

    async def find(self, http: HttpTransport, sought: Sought) -> str | None:
        """Among all jobs that the API lists."""
        token = ""
        while True:
            page, _ = await http.exchange("GET", f"batches?pageSize={LISTED}{token}", JOB_SECONDS)
            for job in listed(page, "operations"):
                if _about(job).get("displayName") == sought.name and _name(job) not in sought.others:
                    return _name(job)
            if not page.get("nextPageToken"):
                return None
            token = f"&pageToken={page['nextPageToken']}"

    async def look(self, http: HttpTransport, id: str) -> JobStatus:
        """An operation, whose metadata are the job."""
        operation, _ = await http.exchange("GET", id, JOB_SECONDS)
        job = _about(operation)
        done, state = counted(job.get("batchStats"), *DONE), str(job.get("state"))
        if state.endswith("FAILED") or operation.get("error"):
            return JobStatus("failed", done, said=_reason(operation.get("error")))
        if not state.endswith(ENDED):
            return JobStatus("running", done)
        output = operation.get("response") or job.get("output")
        file = output.get("responsesFile") if isinstance(output, Mapping) else None
        return JobStatus("ended", done, (str(file),) if file else ())

    async def rows(
        self, http: HttpTransport, id: str, status: JobStatus
    ) -> AsyncIterator[Row | MalformedBody]:
        """Of the file of responses; a job that expired has none."""
        for file in status.files:
            place = beside(http.base_url, "download", f"{file}:download?alt=media")
            async for row in http.lines(place, FILE_SECONDS, _row):
                yield row

    async def cancel(self, http: HttpTransport, id: str) -> None:
        """It ends within minutes."""
        await http.exchange("POST", f"{id}:cancel", JOB_SECONDS)


def _row(line: bytes) -> Row:
    """What a line of responses says; raises MalformedBody."""
    row = json_object(line, "a row of the batch")
    name, error = str(row.get("key")), row.get("error")
    if isinstance(row.get("response"), Mapping):
        return Row(name, 200, json_bytes(row["response"]))
    if isinstance(error, Mapping):
        code = error.get("code")
        status_code = code if isinstance(code, int) and 400 <= code < 600 else 500
        return Row(name, status_code, json_bytes({"error": error}))
    return Row(name, NOT_ASKED)


def beside(base_url: str, service: str, path: str) -> str:
    """An address of the API's services for files, whose name stands before the version.

    >>> beside("https://generativelanguage.googleapis.com/v1beta", "upload", "files")
    'https://generativelanguage.googleapis.com/upload/v1beta/files'
    """
    parts = urlsplit(base_url)
    before, _, version = parts.path.rpartition("/")
    return f"{parts.scheme}://{parts.netloc}{before}/{service}/{version}/{path}"


def _about(operation: Mapping[str, Any]) -> Mapping[str, Any]:
    about = operation.get("metadata")
    return about if isinstance(about, Mapping) else {}


def _name(body: Any) -> str:
    if not isinstance(body, Mapping) or not isinstance(body.get("name"), str):
        raise MalformedBody("what came about a file or a batch has no name")
    return str(body["name"])


def _reason(error: Any) -> str:
    return str(error.get("message") or error) if isinstance(error, Mapping) else "it says no reason"
