"""The type ``replay``: responses that were recorded before, from a file or from a field of the item.

``recordings`` finds the recorded row that answers a request, ``recorded_content`` says what it holds.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import orjson
import pyarrow as pa
from pydantic import Field, model_validator

from metrics.config import BelongsTo, NamesFile, Strict
from metrics.errors import ConfigError
from tasks.datasets.config import field_at
from tasks.models.errors import shortened
from tasks.models.providers.provider import RecordedProvider
from tasks.models.providers.recorded_content import RecordedContent, text_of
from tasks.models.providers.recordings import RecordedKey, RecordedRow, recording_file, shown
from tasks.models.records import InferenceOptions
from tasks.models.registry import provider
from tasks.models.tally import NOT_RECORDED, PartitionResponses, RequestTally
from tasks.store.digests import file_digest
from tasks.store.home import named_path
from tasks.store.schemas import ABSENT, RESPONSES, row_batch, row_dicts
from tasks.store.thresholds import Threshold

ROWS_AT_ONCE = Threshold("rows_replayed", 1_024)
SHOWN = 5  # names of models in a message
ASKED = ("item_id", "doc_id", "prompt_template", "kind", "prompts", "unconditional", "doc_json")
"""What of a request decides which recorded response answers it."""

logger = logging.getLogger(__name__)


Recorded = RecordedRow | None
FindRecorded = Callable[[Mapping[str, Any], int], Recorded]


class ReplayConfig(Strict):
    """Recorded responses: a file of rows, or a dotted field of the item itself."""

    path: Annotated[str | None, NamesFile()] = Field(
        None, description=".jsonl or .parquet with item_id, response, and optionally more"
    )
    field: str | None = Field(None, description="dotted path into the item, e.g. gpt.solution")
    prompts: Annotated[dict[str, str], BelongsTo("path")] = Field(
        default_factory=dict, description="name of a prompt → what its rows call it"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.field is None):
            raise ValueError(
                "replay takes either config.path (a file of responses) or config.field (a field of the item)"
            )
        return self


@provider("replay")
class Replay(RecordedProvider[ReplayConfig]):
    """Responses that were recorded before."""

    schema = ReplayConfig

    def facts(self) -> dict[str, Any]:
        """The file's digest and the name that its rows are joined by, or the field's name; raises ConfigError
        for a file that can't be read."""
        path = self.recording
        if path is None:
            return {"field": self.config.field}
        try:
            # A file may hold several models' rows: the name is part of the join, so it decides answers.
            facts = {"file": file_digest(path), "model_name": self.model.name}
            return facts | ({"prompts": self.config.prompts} if self.config.prompts else {})
        except (OSError, ValueError) as error:  # no such file, or no name that a file can have
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"model {self.model.name!r}: can't read recorded responses {path}: {reason}"
            ) from error

    @property
    def recording(self) -> Path | None:
        """The file of responses; None where they are a field of the item."""
        return None if self.config.path is None else named_path(self.base_dir, self.config.path)

    def responses(self, requests: Iterable[pa.RecordBatch], options: InferenceOptions) -> PartitionResponses:
        """Rows for the requests from what was recorded; the tally counts while they are read.

        A response that is not there is a row without one, never an empty text. Raises DataError for a file
        that can't be read.
        """
        tally, path = RequestTally(), self.recording
        source = _Source(
            self.config.path or f"field {self.config.field}", options.sampling.num_samples, tally
        )
        if path is None:
            find = _field_lookup(str(self.config.field))
        else:
            find = _file_lookup(self.model.name, path, self.config.prompts)
            recording = recording_file(path)
            source.may_hold_more = recording.most_samples > source.samples
            names = recording.models
            if names and self.model.name not in names:
                known = ", ".join(sorted(names)[:SHOWN])
                source.hint = (
                    f"; its rows are of model_name {known}, and this model is called {self.model.name!r}"
                )
            elif len(recording.metadata_prompts) > 1:
                prompts = ", ".join(map(shown, recording.metadata_prompts[:SHOWN]))
                source.hint = f"; its rows are of metadata.prompt_template {prompts}"
        return PartitionResponses(_batches(requests, find, source), tally)


class _Source:
    """Where responses come from, how many an item has, what was counted, and what no column takes."""

    def __init__(self, name: str, samples: int, tally: RequestTally) -> None:
        self.name = name
        self.samples = samples
        self.tally = tally
        self.hint = ""
        self.may_hold_more = True
        self.more: list[str] = []
        self.content = RecordedContent(samples)

    def tell(self) -> None:
        """One warning a field that could not be used somewhere, and one for samples that nobody asks for."""
        if self.more:
            others = f" and {len(self.more) - 1} others" if len(self.more) > 1 else ""
            said = "%s holds more than num_samples: %d samples of item %r%s; the others are not looked at"
            logger.warning(said, self.name, self.samples, self.more[0], others)
        self.content.tell()


def _file_lookup(model_name: str, path: Path, prompts: Mapping[str, str]) -> FindRecorded:
    recordings = recording_file(path)
    only = recordings.metadata_prompts[0] if len(recordings.metadata_prompts) == 1 else None
    # Of a file with one prompt rows are found by item alone: that is right for its own prompt, and for any
    # where no other is known.
    others = only is not None and only in prompts.values()

    def find(row: Mapping[str, Any], sample: int) -> Recorded:
        prompt = prompts.get(row["prompt_template"], row["prompt_template"])
        if others and prompt != only:
            return None
        return recordings.find(RecordedKey(model_name, prompt, row["item_id"], sample))

    return find


def _field_lookup(path: str) -> FindRecorded:
    def find(row: Mapping[str, Any], sample: int) -> Recorded:
        try:
            value = field_at(orjson.loads(row["doc_json"]), path)
        except KeyError:
            return None
        recorded = list(_samples(value)) if value is not None else []
        if sample >= len(recorded) or recorded[sample] is None:
            return None
        return RecordedRow({"response": text_of(recorded[sample])})

    return find


def _batches(
    requests: Iterable[pa.RecordBatch], find: FindRecorded, source: _Source
) -> Iterator[pa.RecordBatch]:
    for batch in requests:
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            asked = row_dicts(batch.select(ASKED).slice(start, ROWS_AT_ONCE))
            rows = []
            for request in asked:
                generates = request["kind"] == "generate"
                for sample in range(source.samples if generates else 1):
                    recorded = find(request, sample)
                    rows.append(_row(request, sample, recorded, source))
                if generates and source.may_hold_more and find(request, source.samples) is not None:
                    source.more.append(request["item_id"])
            yield row_batch(rows, RESPONSES)
    source.tell()


def _row(request: Mapping[str, Any], sample: int, recorded: Recorded, source: _Source) -> dict[str, Any]:
    prompts = request["prompts"]
    prompt = (
        prompts[sample % len(prompts)] if prompts and request["kind"] == "generate" else "".join(prompts[:1])
    )
    if recorded is None:
        item = request["item_id"]
        missing = f"no recorded response to item {item!r}, sample {sample}, in {source.name}{source.hint}"
        content: dict[str, Any] = {"status": "infra_error", "error": missing, "attempts": 0}
    elif request["kind"] == "generate":
        content = source.content.of_generation(recorded)
    else:
        content = source.content.of_likelihoods(recorded, bool(request["unconditional"]))
    identity = "\0".join((source.name, request["prompt_template"], request["item_id"], str(sample), prompt))
    row: dict[str, Any] = {
        "item_id": request["item_id"],
        "doc_id": request["doc_id"],
        "sample_id": f"{request['item_id']}_sample_{sample}",
        "sample_index": sample,
        "recorded_row": ABSENT if recorded is None else recorded.number,
        "request_key": hashlib.sha256(identity.encode("utf-8", "replace")).hexdigest(),
        "prompt": prompt,
        **content,
    }
    source.tally.requests += 1
    source.tally.cached += row["status"] in ("ok", "cut_off", "refused")
    source.tally.refused += row["status"] == "refused"
    if row["status"] == "infra_error":
        source.tally.failed += 1
        source.tally.absent += recorded is None
        source.tally.count_error(NOT_RECORDED if recorded is None else _reason(row, recorded))
    return row


def _reason(row: Mapping[str, Any], recorded: RecordedRow) -> str:
    """Why a recorded response is none, in words that are alike in rows alike."""
    return shortened(str(row["error"] or row["status"]).removeprefix(recorded.place).lstrip(": "))


def _samples(value: Any) -> Iterable[Any]:
    """The samples in a field: a list holds one each, anything else is the only one."""
    return value if isinstance(value, list) else [value]
