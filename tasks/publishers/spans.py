"""What a run's spans say, by the conventions of OpenTelemetry for generative AI (``gen_ai.…``).

::

    evaluate BENCHMARK         its numbers as events gen_ai.evaluation.result
    ├── chat MODEL             a request to a model or a judge that was answered, or failed
    └── execute_tool sandbox   a program that ran

They are made of what the store keeps, and have the times at which things happened: an answer that the run
found in the store was asked for earlier (``nightjar.reused``). Recorded responses were not asked for, and
have no span. When a program ran is not kept: its span begins when the answer came that holds it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from tasks.publishers.publisher import FinishedRun, is_finite, number_name
from tasks.store.storage import ArtifactRef, Store

SYSTEMS: Final[Mapping[str, str]] = {
    "openai_responses": "openai", "gemini": "gcp.gemini", "bedrock": "aws.bedrock",
}  # fmt: skip
"""Types of models that the conventions call otherwise; all others go by their own name."""
SAMPLING: Final[Mapping[str, str]] = {
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens", "seed": "seed", "stop": "stop_sequences",
    "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty",
}  # fmt: skip
"""Parameter of ours → what stands behind ``gen_ai.request.``."""
TOKENS: Final[Mapping[str, str]] = {
    "prompt_tokens": "input_tokens", "completion_tokens": "output_tokens",
    "cached_tokens": "cache_read.input_tokens", "reasoning_tokens": "reasoning.output_tokens",
}  # fmt: skip
"""Column of a response → what stands behind ``gen_ai.usage.``."""
RESPONSE_COLUMNS: Final = (
    "item_id", "sample_index", "prompt", "response", "status", "error", "finish_reason", "attempts",
    "response_id", "served_model", "inference_time", "timestamp", *TOKENS,
)  # fmt: skip
EXECUTION_COLUMNS: Final = (
    "item_id", "sample_index", "verdict", "exit_code", "wall_seconds", "stdout", "stderr", "sandbox", "error",
)  # fmt: skip


@dataclass(frozen=True)
class SpanFacts:
    """What a span says. Times are seconds since 1970."""

    mark: str
    """What tells it from all others of the run."""
    name: str
    start: float
    end: float
    attributes: Mapping[str, Any]
    client: bool = False
    error: str | None = None
    """What went wrong; empty where that is not to be told."""
    events: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class RunSpans:
    """The spans of a run; texts of samples are in them only with ``samples``."""

    run: FinishedRun
    samples: bool = False

    @cached_property
    def store(self) -> Store:
        """Where the run's answers are kept."""
        return Store(str(self.run.manifest["store"]))

    @property
    def root(self) -> SpanFacts:
        """The run, with its numbers."""
        manifest = self.run.manifest
        started, benchmark = float(manifest["started"]), str(manifest["benchmark"])
        about = {name: manifest.get(name) for name in ("run_id", "night", "git_revision", "config_digest")}
        return SpanFacts(
            mark="run",
            name=f"evaluate {benchmark}",
            start=started,
            end=started + float(manifest["wall_seconds"]),
            attributes={
                "nightjar.benchmark": benchmark,
                "nightjar.models": list(manifest["models"]),
                **{f"nightjar.{name}": value for name, value in about.items()},
            },
            events=[
                {"name": "gen_ai.evaluation.result", "attributes": _number(row, model)}
                for model in manifest["models"]
                for row in self.run.numbers(model)
            ],
        )

    def children(self) -> Iterator[SpanFacts]:
        """Requests to models and judges, and programs."""
        artifacts = self.run.manifest["artifacts"]
        for entry in artifacts.get("infer", ()):
            for row in self._rows(entry, RESPONSE_COLUMNS):
                if row["timestamp"] is not None:
                    yield self._request(entry, row)
        for entry in artifacts.get("execute", ()):
            came = self._arrivals(entry)
            for place, row in enumerate(self._rows(entry, EXECUTION_COLUMNS)):
                if row["verdict"] is not None:
                    yield self._program(entry, place, row, came.get((row["item_id"], row["sample_index"])))

    def _rows(self, entry: Mapping[str, Any], columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        for batch in self.store.batches(ArtifactRef.of(entry), columns):
            yield from batch.to_pylist()

    def _arrivals(self, entry: Mapping[str, Any]) -> dict[tuple[str, int], float]:
        """When the answers came whose programs an artifact is about."""
        about = ("model_name", "prompt_template")
        answers = (
            answer
            for answer in self.run.manifest["artifacts"].get("infer", ())
            if all(answer.get(name) == entry.get(name) for name in about)
        )
        return {
            (row["item_id"], row["sample_index"]): _seconds(row["timestamp"])
            for answer in answers
            for row in self._rows(answer, ("item_id", "sample_index", "timestamp"))
            if row["timestamp"] is not None
        }

    def _request(self, entry: Mapping[str, Any], row: Mapping[str, Any]) -> SpanFacts:
        # A model may be a judge as well, with a sampling of its own.
        asked_as = "judges" if entry["role"] == "judge" else "models"
        facts = self.run.manifest[asked_as][entry["asks"]]
        identity, came = facts["identity"], _seconds(row["timestamp"])
        kind = "text_completion" if identity.get("api") == "completions" else "chat"
        asked, system = str(identity.get("model") or entry["asks"]), str(identity.get("type") or "unknown")
        failed = row["status"] == "infra_error"
        return SpanFacts(
            mark=f"{entry['step']}\0{row['item_id']}\0{row['sample_index']}",
            name=f"{kind} {asked}",
            start=came - (row["inference_time"] or 0.0),
            end=came,
            client=True,
            error=self._told(row["error"]) if failed else None,
            attributes={
                "gen_ai.operation.name": kind,
                "gen_ai.provider.name": SYSTEMS.get(system, system),
                "gen_ai.request.model": asked,
                "gen_ai.response.model": row["served_model"],
                "gen_ai.response.id": row["response_id"],
                "gen_ai.response.finish_reasons": [row["finish_reason"]] if row["finish_reason"] else None,
                **_server(identity),
                **_sampling(facts["sampling"]),
                **{f"gen_ai.usage.{name}": row[column] for column, name in TOKENS.items()},
                "error.type": row["status"] if failed else None,
                "nightjar.model": entry["asks"],
                "nightjar.role": entry["role"],
                "nightjar.status": row["status"],
                "nightjar.attempts": row["attempts"],
                "nightjar.reused": came < float(self.run.manifest["started"]),
                **_sample(entry, row),
                **(_messages(row) if self.samples else {}),
            },
        )

    def _program(
        self, entry: Mapping[str, Any], place: int, row: Mapping[str, Any], came: float | None
    ) -> SpanFacts:
        start = came if came is not None else float(self.run.manifest["started"])
        lost = row["error"] is not None
        return SpanFacts(
            mark=f"{entry['step']}\0{row['item_id']}\0{row['sample_index']}\0{place}",
            name="execute_tool sandbox",
            start=start,
            end=start + (row["wall_seconds"] or 0.0),
            error=self._told(row["error"]) if lost else None,
            attributes={
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": "sandbox",
                "gen_ai.tool.type": "function",
                "error.type": row["verdict"] if lost else None,
                "nightjar.model": entry.get("model_name"),
                "nightjar.sandbox": row["sandbox"],
                "nightjar.verdict": row["verdict"],
                "process.exit.code": row["exit_code"],
                **_sample(entry, row),
                **({f"nightjar.{name}": row[name] for name in ("stdout", "stderr")} if self.samples else {}),
            },
        )

    def _told(self, error: str | None) -> str:
        """An error's text may quote an answer."""
        return (error or "") if self.samples else ""


def _number(row: Mapping[str, Any], model: str) -> dict[str, Any]:
    others = ("stderr", "ci_low", "ci_high", "n_scored")
    return {
        "gen_ai.evaluation.name": "/".join(number_name(row)),
        "gen_ai.evaluation.score.value": row["value"],
        "nightjar.model": model,
        **{f"nightjar.{name}": row[name] for name in others if is_finite(row[name])},
    }


def _sample(entry: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "nightjar.step": entry["step"],
        "nightjar.item_id": row["item_id"],
        "nightjar.sample_index": row["sample_index"],
    }


def _server(identity: Mapping[str, Any]) -> dict[str, Any]:
    address = urlsplit(str(identity.get("base_url") or ""))
    return {"server.address": address.hostname, "server.port": address.port} if address.hostname else {}


def _sampling(given: Mapping[str, Any]) -> dict[str, Any]:
    found = {f"gen_ai.request.{SAMPLING[name]}": value for name, value in given.items() if name in SAMPLING}
    stop = found.get("gen_ai.request.stop_sequences")
    return found | ({"gen_ai.request.stop_sequences": [stop]} if isinstance(stop, str) else {})


def _messages(row: Mapping[str, Any]) -> dict[str, Any]:
    """Question and answer in the conventions' form: messages of parts."""
    answer = _message("assistant", row["response"] or "") | {"finish_reason": row["finish_reason"] or "stop"}
    return {
        "gen_ai.input.messages": orjson.dumps(_chat(row["prompt"])).decode(),
        "gen_ai.output.messages": orjson.dumps([answer]).decode(),
    }


def _chat(prompt: str) -> list[dict[str, Any]]:
    try:
        found = orjson.loads(prompt)
    except orjson.JSONDecodeError:
        found = None
    if isinstance(found, list) and found and all(isinstance(one, dict) and "role" in one for one in found):
        return [_message(one["role"], one.get("content")) for one in found]
    return [_message("user", prompt)]


def _message(role: str, content: Any) -> dict[str, Any]:
    text = content if isinstance(content, str) else orjson.dumps(content).decode()
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
