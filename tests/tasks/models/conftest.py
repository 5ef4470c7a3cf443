"""What the tests of inference share: request batches, a store in a temporary folder, calls of ``respond``."""

import http.server
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from tasks.models.answers.segments import AnswerStore
from tasks.models.config import ModelConfig, SampleParams
from tasks.models.demo.options import DemoOptions, Faults
from tasks.models.demo.server import Serving, serve
from tasks.models.records import InferenceOptions
from tasks.models.respond import respond
from tasks.models.tally import RequestTally
from tasks.store.schemas import REQUESTS
from tasks.store.storage import Store
from tests.loopback import answering

FAST = {"timeout": 1.0, "max_concurrency": 32}


@dataclass(frozen=True)
class Asked:
    """A request that a scripted endpoint got."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    content: bytes = b""


class ScriptedServer(http.server.ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


@pytest.fixture
def script() -> Iterator[Callable[[Callable[[Asked], tuple[int, dict[str, str], Any]]], str]]:
    """Starts endpoints that answer as a function says: status, headers, and bytes or what becomes JSON; gives
    the address."""
    with ExitStack() as stack:

        def start(answer: Callable[[Asked], tuple[int, dict[str, str], Any]]) -> str:
            class Handler(http.server.BaseHTTPRequestHandler):
                protocol_version = "HTTP/1.1"

                def do_POST(self) -> None:
                    content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                    body = orjson.loads(content) if content[:1] in (b"{", b"[") else content
                    headers = {name.lower(): value for name, value in self.headers.items()}
                    status, told, said = answer(Asked(self.command, self.path, headers, body, content))
                    data = said if isinstance(said, bytes) else orjson.dumps(said)
                    self.send_response(status)
                    for name, value in {"Content-Type": "application/json", **told}.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

                do_GET = do_POST  # noqa: N815

                def log_message(self, *_: Any) -> None:
                    """Silent."""

            server = ScriptedServer(("127.0.0.1", 0), Handler)
            stack.enter_context(answering(server))
            return f"http://127.0.0.1:{server.server_address[1]}/v1"

        yield start


@dataclass(frozen=True)
class Outcome:
    """The rows of one call of ``respond`` and its tally."""

    rows: list[dict[str, Any]]
    tally: RequestTally

    def column(self, name: str) -> list[Any]:
        return [row[name] for row in self.rows]


@dataclass(frozen=True)
class Bench:
    """A folder with a store and a journal."""

    folder: Path

    def options(self, **fields: Any) -> InferenceOptions:
        sampling = SampleParams(**fields.pop("sampling", {}))
        return InferenceOptions(sampling=sampling, journal_dir=self.folder / "journal", **fields)

    @property
    def answers(self) -> AnswerStore:
        return AnswerStore(Store(str(self.folder / "store")))

    def ask(self, model: ModelConfig, requests: Any, **fields: Any) -> Outcome:
        responded = respond(model, requests, self.answers, self.options(**fields))
        return Outcome([row for batch in responded.batches for row in batch.to_pylist()], responded.tally)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def request_row(index: int, **fields: Any) -> dict[str, Any]:
    row = {
        "item_id": f"item-{index}",
        "doc_id": index,
        "item_digest": "d",
        "cluster": None,
        "prompt_template": "plain",
        "kind": "generate",
        "chat": False,
        "prompts": [word_problem(index)],
        "continuations": [""],
        "unconditional": [],
        "references_json": "[]",
        "gold": [],
        "choices": [],
        "doc_json": "{}",
        "first_sample": 0,
    }
    return {**row, **fields}


def word_problem(index: int) -> str:
    question = f"Tom has {index} apples. He buys 3 bags with 6 apples each. How many apples does he have now?"
    return f"Question: {question}\nAnswer:"


@pytest.fixture
def batch_of() -> Callable[[Sequence[dict[str, Any]]], list[pa.RecordBatch]]:
    def make(rows: Sequence[dict[str, Any]]) -> list[pa.RecordBatch]:
        made = [request_row(index, **fields) for index, fields in enumerate(rows)]
        return [pa.RecordBatch.from_pylist(made, schema=REQUESTS)]

    return make


@pytest.fixture
def problems() -> Callable[[int], list[pa.RecordBatch]]:
    def make(count: int) -> list[pa.RecordBatch]:
        return [pa.RecordBatch.from_pylist([request_row(i) for i in range(count)], schema=REQUESTS)]

    return make


@pytest.fixture
def pairs() -> Callable[..., list[pa.RecordBatch]]:
    """One multiple-choice item a context: all continuations, and optionally the same without context."""

    def make(
        contexts: Sequence[str], continuations: Sequence[str], alone: Sequence[str] = ()
    ) -> list[pa.RecordBatch]:
        rows = [
            request_row(
                index,
                kind="loglikelihood",
                prompts=[context] * len(continuations),
                continuations=list(continuations),
                unconditional=list(alone),
            )
            for index, context in enumerate(contexts)
        ]
        return [pa.RecordBatch.from_pylist(rows, schema=REQUESTS)]

    return make


@pytest.fixture
def endpoint() -> Callable[..., ModelConfig]:
    """A model of type openai at a running embedded server."""

    def make(serving: Serving, **config: Any) -> ModelConfig:
        fields = {name: config.pop(name) for name in ("tokenizer", "max_length", "name") if name in config}
        settings = {"base_url": serving.base_url, "model": "demo", **FAST, **config}
        return ModelConfig(**{"name": "demo", "type": "openai", "config": settings, **fields})

    return make


@pytest.fixture
def served() -> Iterator[Callable[..., Serving]]:
    """Starts embedded servers and stops them in the end."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def start(faults: Faults | None = None, **options: Any) -> Serving:
            return stack.enter_context(serve(DemoOptions(faults=faults or Faults(), **options)))

        yield start


@pytest.fixture
def started() -> Iterator[Callable[..., tuple[Any, str]]]:
    """Starts servers of a provider's kind that take batches; gives the server and its address."""
    from tests.tasks.models.batch_servers import provider_servers

    with provider_servers() as start:
        yield start


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[[str, Sequence[Any]], Path]:
    def write(name: str, rows: Sequence[Any]) -> Path:
        path = tmp_path / name
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
        return path

    return write
