"""Endpoints of the tests' own that take batches, in the wire forms that OpenAI, Anthropic and Google
document, and single requests beside them.

The jobs and files of a ``BatchServer`` outlive its clients. ``before`` and ``after`` are called around what
an exchange does, with its number and its name: so a test can end a client at any moment, or make an exchange
fail.
"""

import http.server
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.parser import BytesParser
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import orjson

from tests.loopback import answering

Document = dict[str, Any]


class Failure(Exception):
    """An exchange that a test makes fail with a status."""

    def __init__(self, status: int, said: str = "made to fail") -> None:
        super().__init__(said)
        self.status = status


@dataclass
class ServerJob:
    """A job: its requests by name, and what the server makes of it."""

    id: str
    requests: dict[str, Document]
    made: float = field(default_factory=time.time)
    about: Document = field(default_factory=dict)
    looks: int = 0
    cancelled: bool = False


@dataclass
class BatchServer:
    """What a provider keeps, and how it behaves: a job ends after ``looks`` looks at it, ``outcome`` says
    what comes of a request in a job (a status and a body; None: it expired)."""

    looks: int = 1
    reply: Callable[[Document], Document] = lambda body: {"text": str(len(str(body)))}
    outcome: Callable[[str, Document], tuple[int, Document] | None] | None = None
    before: Callable[[int, str], None] = lambda number, name: None
    after: Callable[[int, str], None] = lambda number, name: None
    fails: str | None = None
    """Why every job fails as a whole."""
    jobs: dict[str, ServerJob] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    exchanges: list[str] = field(default_factory=list)
    single: list[Document] = field(default_factory=list)
    bodies: list[Document] = field(default_factory=list)
    """Of single requests and of those in jobs, as they came."""
    address: str = ""
    lock: Any = field(default_factory=threading.RLock)

    def file(self, content: bytes) -> str:
        name = f"file-{len(self.files)}"
        self.files[name] = content
        return name

    def job(self, requests: dict[str, Document], **about: Any) -> ServerJob:
        made = ServerJob(f"job-{len(self.jobs)}", requests, about=about)
        self.jobs[made.id] = made
        self.bodies += requests.values()
        return made

    def listed(
        self, asked: "Asked", size: str, after: str, newest_first: bool = True
    ) -> tuple[list[ServerJob], bool]:
        """A page of jobs, as the query says where it begins and how many are on it; whether more follow."""
        query = dict(parse_qsl(urlsplit(asked.path).query))
        jobs = list(reversed(self.jobs.values()) if newest_first else self.jobs.values())
        ids = [job.id for job in jobs]
        start = ids.index(query[after]) + 1 if after in query else 0
        end = start + min(int(query.get(size, 20)), 100)
        return jobs[start:end], end < len(jobs)

    def looked(self, job: ServerJob) -> bool:
        """Whether a job has ended."""
        job.looks += 1
        return job.cancelled or job.looks > self.looks

    def rows(self, job: ServerJob) -> Iterator[tuple[str, tuple[int, Document] | None]]:
        """In another order than they were sent."""
        for name, body in reversed(job.requests.items()):
            yield name, (200, self.reply(body)) if self.outcome is None else self.outcome(name, body)


Answer = tuple[int, dict[str, str], Any]


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    content: bytes

    @property
    def body(self) -> Document:
        return dict(orjson.loads(self.content))


class OpenAIServer(BatchServer):
    """``/v1/files``, ``/v1/batches``, ``/v1/chat/completions``."""

    root = "/v1"

    def answer(self, asked: Asked) -> Answer:
        path = asked.path.removeprefix("/v1/").partition("?")[0]
        if path == "models":
            return 200, {}, {"object": "list", "data": [{"id": "m"}]}
        if path in ("chat/completions", "responses"):
            self.single.append(asked.body)
            self.bodies.append(asked.body)
            return 200, {}, self.reply(asked.body)
        if path == "files":
            kind = asked.headers["content-type"]
            parts = BytesParser().parsebytes(f"Content-Type: {kind}\r\n\r\n".encode() + asked.content)
            named = {
                part.get_param("name", header="content-disposition"): part for part in parts.get_payload()
            }
            assert named["purpose"].get_payload() == "batch"
            id = self.file(named["file"].get_payload(decode=True))
            return 200, {}, {"id": id, "object": "file", "purpose": "batch", "status": "processed"}
        if path == "batches" and asked.method == "POST":
            said = asked.body
            assert said["completion_window"] == "24h"
            lines = [orjson.loads(line) for line in self.files[said["input_file_id"]].splitlines()]
            assert all(line["url"] == said["endpoint"] and line["method"] == "POST" for line in lines)
            job = self.job({line["custom_id"]: line["body"] for line in lines}, **said)
            assert len(job.requests) == len(lines)
            return 200, {}, self.batch(job, "validating")
        if path == "batches":
            jobs, more = self.listed(asked, "limit", "after")
            page = [self.batch(job, "in_progress") for job in jobs]
            return 200, {}, {"object": "list", "data": page, "has_more": more}
        if match := re.fullmatch(r"batches/([^/]+)(/cancel)?", path):
            job = self.jobs[match[1]]
            job.cancelled |= match[2] is not None
            if self.fails:
                return 200, {}, self.batch(job, "failed")
            return 200, {}, self.batch(job, self.ended(job) if self.looked(job) else "in_progress")
        if match := re.fullmatch(r"files/([^/]+)/content", path):
            return 200, {}, self.files[match[1]]
        return 404, {}, {"error": {"message": f"nothing at {path}"}}

    def ended(self, job: ServerJob) -> str:
        if "output_file_id" not in job.about:
            good, bad = [], []
            for name, outcome in self.rows(job):
                row = {"id": f"batch_req_{name[:8]}", "custom_id": name, "response": None, "error": None}
                if outcome is None:
                    row["error"] = {"code": "batch_expired", "message": "could not be executed in time"}
                else:
                    row["response"] = {"status_code": outcome[0], "request_id": "r", "body": outcome[1]}
                (good if outcome is not None and outcome[0] == 200 else bad).append(orjson.dumps(row))
            for place, rows in (("output_file_id", good), ("error_file_id", bad)):
                job.about[place] = self.file(b"\n".join(rows) + b"\n") if rows else None
        return "cancelled" if job.cancelled else "completed"

    def batch(self, job: ServerJob, status: str) -> Document:
        done = len(job.requests) if status == "completed" else 0
        errors = {"object": "list", "data": [{"code": "bad", "message": self.fails, "line": 1}]}
        return {
            "id": job.id, "object": "batch", "endpoint": job.about["endpoint"], "status": status,
            "errors": errors if status == "failed" else None, "input_file_id": job.about["input_file_id"],
            "completion_window": "24h", "output_file_id": job.about.get("output_file_id"),
            "error_file_id": job.about.get("error_file_id"), "created_at": int(job.made),
            "request_counts": {"total": len(job.requests), "completed": done, "failed": 0},
            "metadata": job.about.get("metadata"),
        }  # fmt: skip


class AnthropicServer(BatchServer):
    """``/v1/messages`` and ``/v1/messages/batches``."""

    root = "/v1"

    def answer(self, asked: Asked) -> Answer:
        path = asked.path.removeprefix("/v1/").partition("?")[0]
        if path.startswith("models/"):
            return 200, {}, {"type": "model", "id": path.removeprefix("models/")}
        if path == "messages":
            self.single.append(asked.body)
            self.bodies.append(asked.body)
            return 200, {}, self.reply(asked.body)
        if path == "messages/batches" and asked.method == "POST":
            requests = asked.body["requests"]
            assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", entry["custom_id"]) for entry in requests)
            job = self.job({entry["custom_id"]: entry["params"] for entry in requests})
            assert len(job.requests) == len(requests)
            return 200, {}, self.batch(job, False)
        if path == "messages/batches":
            jobs, more = self.listed(asked, "limit", "after_id")
            page = [self.batch(job, False) for job in jobs]
            ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {}
            return 200, {}, {"data": page, "has_more": more, "first_id": None, "last_id": None, **ends}
        if match := re.fullmatch(r"messages/batches/([^/]+)(/cancel)?", path):
            job = self.jobs[match[1]]
            job.cancelled |= match[2] is not None
            return 200, {}, self.batch(job, self.looked(job))
        if match := re.fullmatch(r"messages/batches/([^/]+)/results", path):
            rows = [
                orjson.dumps({"custom_id": name, "result": self.result(outcome)})
                for name, outcome in self.rows(self.jobs[match[1]])
            ]
            return 200, {}, b"\n".join(rows)
        return 404, {}, {"type": "error", "error": {"type": "not_found_error", "message": path}}

    def result(self, outcome: tuple[int, Document] | None) -> Document:
        if outcome is None:
            return {"type": "expired"}
        status, body = outcome
        return {"type": "succeeded", "message": body} if status == 200 else {"type": "errored", "error": body}

    def batch(self, job: ServerJob, ended: bool) -> Document:
        counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
        counts["succeeded" if ended else "processing"] = len(job.requests)
        return {
            "id": job.id, "type": "message_batch", "processing_status": "ended" if ended else "in_progress",
            "request_counts": counts, "ended_at": None, "archived_at": None, "cancel_initiated_at": None,
            "created_at": datetime.fromtimestamp(job.made, UTC).isoformat().replace("+00:00", "Z"),
            "results_url": "https://elsewhere.example/results" if ended else None,
        }  # fmt: skip


class GeminiServer(BatchServer):
    """``/v1beta/models/…``, ``/v1beta/batches``, and files beside them."""

    root = "/v1beta"

    def answer(self, asked: Asked) -> Answer:
        path = asked.path.partition("?")[0]
        if path == "/upload/v1beta/files":
            assert asked.headers["x-goog-upload-protocol"] == "resumable"
            return 200, {"X-Goog-Upload-URL": f"{self.address}/upload/v1beta/files/target"}, b""
        if path == "/upload/v1beta/files/target":
            assert asked.headers["x-goog-upload-command"] == "upload, finalize"
            return 200, {}, {"file": {"name": f"files/{self.file(asked.content)}", "state": "ACTIVE"}}
        if match := re.fullmatch(r"/download/v1beta/files/(.+):download", path):
            return 200, {}, self.files[match[1]]
        path = path.removeprefix("/v1beta/")
        if path.endswith((":generateContent", ":streamGenerateContent")):
            self.single.append(asked.body)
            self.bodies.append(asked.body)
            return 200, {}, self.reply(asked.body)
        if path.endswith(":batchGenerateContent"):
            said = asked.body["batch"]
            file = said["input_config"]["file_name"].removeprefix("files/")
            lines = [orjson.loads(line) for line in self.files[file].splitlines()]
            job = self.job({line["key"]: line["request"] for line in lines}, name=said["display_name"])
            return 200, {}, self.batch(job, "PENDING")
        if path.startswith("models/"):
            return 200, {}, {"name": path}
        if path == "batches":
            jobs, more = self.listed(asked, "pageSize", "pageToken", newest_first=False)
            token = {"nextPageToken": jobs[-1].id} if more else {}
            return 200, {}, {"operations": [self.batch(job, "RUNNING") for job in jobs], **token}
        if match := re.fullmatch(r"batches/([^:/]+)(:cancel)?", path):
            job = self.jobs[match[1]]
            job.cancelled |= match[2] is not None
            if match[2]:
                return 200, {}, {}
            return 200, {}, self.batch(job, "SUCCEEDED" if self.looked(job) else "RUNNING")
        return 404, {}, {"error": {"code": 404, "message": path, "status": "NOT_FOUND"}}

    def batch(self, job: ServerJob, state: str) -> Document:
        total = str(len(job.requests))
        about = {
            "@type": "type.googleapis.com/google.ai.generativelanguage.v1main.GenerateContentBatch",
            "displayName": job.about["name"], "state": f"BATCH_STATE_{state}", "name": f"batches/{job.id}",
            "batchStats": {"requestCount": total},
        }  # fmt: skip
        if state != "SUCCEEDED":
            return {"name": f"batches/{job.id}", "metadata": about}
        if "output" not in job.about:
            rows = []
            for name, outcome in self.rows(job):
                if outcome is not None:
                    status, body = outcome
                    rows.append({"key": name, **({"response": body} if status == 200 else body)})
            job.about["output"] = self.file(b"\n".join(map(orjson.dumps, rows)) + b"\n")
        about["batchStats"] = {"requestCount": total, "successfulRequestCount": total}
        response = {"responsesFile": f"files/{job.about['output']}"}
        return {"name": f"batches/{job.id}", "metadata": about, "done": True, "response": response}


SERVERS: dict[str, type[BatchServer]] = {
    "openai": OpenAIServer,
    "openai_responses": OpenAIServer,
    "anthropic": AnthropicServer,
    "gemini": GeminiServer,
}


@contextmanager
def serving(server: Any) -> Iterator[str]:
    """Serves on loopback; gives the base URL for a model's config."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            name = f"{self.command} {self.path.partition('?')[0]}"
            with server.lock:
                number = len(server.exchanges)
                server.exchanges.append(name)
                try:
                    server.before(number, name)
                    status, told, said = server.answer(Asked(self.command, self.path, headers, content))
                    server.after(number, name)
                except Failure as failure:
                    status, told, said = failure.status, {}, {"error": {"message": str(failure)}}
            data = said if isinstance(said, bytes) else orjson.dumps(said)
            self.send_response(status)
            for header, value in {"Content-Type": "application/json", **told}.items():
                self.send_header(header, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Silent."""

    class Quiet(http.server.ThreadingHTTPServer):
        request_queue_size = 128
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """A client that a test has ended is no error."""

    listening = Quiet(("127.0.0.1", 0), Handler)
    server.address = f"http://127.0.0.1:{listening.server_address[1]}"
    with answering(listening):
        yield f"{server.address}{server.root}"


def said(kind: str, text: str) -> Document:
    """A reply of a provider that says this."""
    if kind == "openai":
        usage = {"prompt_tokens": 1_000, "completion_tokens": 100, "total_tokens": 1_100}
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        return {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}
    if kind == "anthropic":
        return {
            "id": "msg", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
            "content": [{"type": "text", "text": text}],
            "usage": {"input_tokens": 1_000, "output_tokens": 100},
        }  # fmt: skip
    if kind == "openai_responses":
        part = {"type": "output_text", "text": text, "annotations": []}
        item = {"type": "message", "id": "msg", "status": "completed", "role": "assistant", "content": [part]}
        usage = {"input_tokens": 1_000, "output_tokens": 100, "total_tokens": 1_100}
        about = {"id": "resp", "object": "response", "status": "completed", "model": "m", "error": None}
        return {**about, "incomplete_details": None, "output": [item], "usage": usage}
    content = {"role": "model", "parts": [{"text": text}]}
    usage = {"promptTokenCount": 1_000, "candidatesTokenCount": 100, "totalTokenCount": 1_100}
    candidate = {"content": content, "finishReason": "STOP", "index": 0}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m", "responseId": "g"}


def prompt_of(kind: str, body: Document) -> str:
    """The last thing that a request of a provider says."""
    if kind == "gemini":
        return str(body["contents"][-1]["parts"][-1]["text"])
    if kind == "openai_responses":
        return str(body["input"][-1]["content"][-1]["text"])
    content = body["messages"][-1]["content"]
    return str(content if isinstance(content, str) else content[-1]["text"])


@contextmanager
def provider_servers() -> Iterator[Callable[..., tuple[Any, str]]]:
    """Starts servers of a kind, as ``provider_server`` makes them; gives each and its address."""
    with ExitStack() as stack:

        def start(kind: str, **fields: Any) -> tuple[Any, str]:
            server = provider_server(kind, **fields)
            return server, stack.enter_context(serving(server))

        yield start


def provider_server(kind: str, **fields: Any) -> Any:
    """A server of a kind that answers each prompt with its length and last word."""

    def reply(body: Document) -> Document:
        prompt = prompt_of(kind, body)
        return said(kind, f"{len(prompt)} {prompt.split()[-1]}")

    return SERVERS[kind](**{"reply": reply, **fields})
