"""Evaluation methods of a config: what judges one response and gives it labels, built in or a user's."""

import inspect
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from metrics.aliases import nearest
from metrics.errors import ConfigError, NightjarError, named, users_code
from metrics.patterns import bounded
from metrics.types import Resolve
from scorers.config import ITEM_SECONDS
from tasks.datasets.config import field_at
from tasks.messages.calls import parsed_calls
from tasks.rows.parts import RESPONSE_METADATA, Origin
from tasks.sandboxes.killable import ItemTimeout, KillableProcess
from tasks.store.keys import unix_seconds
from tasks.store.schemas import LIKELIHOODS, plain_values
from tasks.verdicts.built_in import (
    JUDGES,
    BuiltInVerdict,
    Judge,
    as_text,
    needs_truth,
    regex_match,
)
from tasks.verdicts.config import METHOD_PARAMS, EvaluationMethodConfig, RegexMatchParams
from tasks.verdicts.labels import NO_TRUTH, Verdict, details_json, read_verdicts

_BY_KEYWORD = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def accepted_keywords(
    where: str, function: Callable[..., Any], given: Sequence[str], params: Mapping[str, Any]
) -> list[str]:
    """Which of ``given`` the function takes; the first of them it must take.

    ``where`` begins the message of the ConfigError that is raised if it does not, if it does not take an
    entry of ``params``, or if it needs an argument that nobody gives.
    """
    try:
        known = inspect.signature(function).parameters
    except (TypeError, ValueError):  # compiled functions may have no signature to look at
        return list(given)
    names = [name for name, parameter in known.items() if parameter.kind in _BY_KEYWORD]
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    for name in params:
        if name not in names and not anything:
            raise ConfigError(f"{where} does not take the argument {name!r}{nearest(name, names)}")
    taken = [name for name in given if anything or name in names]
    if given[0] not in taken:
        raise ConfigError(f"{where} must take {', '.join(given)} by these names; it takes {', '.join(names)}")
    for name in names:
        if known[name].default is inspect.Parameter.empty and name not in (*taken, *params):
            raise ConfigError(f"{where} needs the argument {name!r}; give it under params:")
    return taken


ASKED_COLUMNS = ("doc_id", "references_json")
TYPED_COLUMNS = (*ASKED_COLUMNS, "ground_truth_json")
COLUMNS_WITH_DOCUMENTS = (*ASKED_COLUMNS, "doc_json", "kind")
GIVEN_COLUMNS = (*COLUMNS_WITH_DOCUMENTS, "ground_truth_json")


@dataclass(frozen=True)
class RequestRow:
    """One item as a method sees it: its acceptable answers and, where read, the JSON texts of its row and of
    its ground truth.

    ``kind`` is the request's, None where it was not read.
    """

    doc_id: int
    references: list[Any]
    document: str | None
    kind: str | None = None
    truth: str | None = None

    def ground_truth(self) -> Any:
        """What a user's method is given: the item's own ground truth, else the answers that the benchmark has
        for it (one alone, a list of several, None where there is none). Each call gives a new value."""
        if self.truth is not None:
            return orjson.loads(self.truth)
        return deepcopy(self.references[0] if len(self.references) == 1 else (self.references or None))

    def values(self) -> list[Any]:
        """The acceptable answers, where the item's own ground truth was read with its values instead of their
        texts: true, not ``True``."""
        if self.truth is None:
            return self.references
        own = orjson.loads(self.truth)
        values = own if isinstance(own, list) else [own]
        if len(values) != len(self.references):
            return self.references
        pairs = zip(values, self.references, strict=True)
        return [value if str(value) == reference else reference for value, reference in pairs]


class RequestCursor:
    """Walks through a part's requests (REQUESTS batches) beside its responses."""

    def __init__(self, batches: Iterable[pa.RecordBatch]):
        self._asked = _asked(batches)
        self._current: RequestRow | None = None

    def find(self, doc_id: int) -> RequestRow:
        """The request of ``doc_id``, the last one found or a later one; NightjarError if it does not come."""
        while self._current is None or self._current.doc_id != doc_id:
            self._current = next(self._asked, None)
            if self._current is None:
                raise NightjarError(
                    f"the response to item number {doc_id} does not follow the order of the requests; "
                    "the artifacts do not belong together, run again with --refresh infer"
                )
        return self._current


def _asked(batches: Iterable[pa.RecordBatch]) -> Iterator[RequestRow]:
    for batch in batches:
        doc_ids = batch.column("doc_id").to_pylist()
        references = map(orjson.loads, batch.column("references_json").to_pylist())
        others = (
            batch.column(name).to_pylist() if name in batch.schema.names else [None] * len(doc_ids)
            for name in ("doc_json", "kind", "ground_truth_json")
        )
        yield from map(RequestRow, doc_ids, references, *others)


Judgement = tuple[list[Verdict], float]
"""What a method says of one response, and how many seconds it took."""

JudgeBatch = Callable[[pa.RecordBatch, Sequence[RequestRow], Origin], Iterator[Judgement]]


@dataclass(frozen=True)
class EvaluationMethod:
    """One evaluation method of a config.

    ``judge(batch, requests, origin)`` yields one judgement for each response of a RESPONSES batch that holds
    ``response_columns``; ``requests`` stand beside the rows. It is only called for responses that succeeded.
    """

    name: str
    judge: JudgeBatch
    response_columns: Sequence[str] = ("response",)
    request_columns: Sequence[str] = ASKED_COLUMNS
    function: Callable[..., Any] | None = None

    @property
    def default_label(self) -> str | None:
        """The label of every response, judged or not; None where only the function knows its labels."""
        return self.name if self.function is None else None

    def code(self) -> tuple[Callable[..., Any], ...]:
        """The user's function, for keys; a built-in is behind its stage."""
        return () if self.function is None else (self.function,)


def build_method(
    config: EvaluationMethodConfig, resolve: Resolve, seconds: float = ITEM_SECONDS
) -> EvaluationMethod:
    """The method that ``config`` describes; ``resolve`` turns ``file.py:fn`` into the function.

    A response on which a pattern takes more than ``seconds`` of CPU time is unscored. Raises ConfigError
    where the function does not take ``response`` or one of the arguments given to it.
    """
    if config.type is None:
        return user_method(config, resolve(str(config.function)))
    params = METHOD_PARAMS[config.type].model_validate(config.params)
    part = getattr(params, "ground_truth_field", None)
    wants_truth = needs_truth(config.type, params)
    if isinstance(params, RegexMatchParams):
        judge = _matching(config.name, params, wants_truth, part, seconds)
    else:
        judge = _row_by_row(config.name, JUDGES[config.type](params), wants_truth, part)
    typed = config.type == "json_match"  # to the others a ground truth is its text, as in templates
    return EvaluationMethod(
        name=config.name, judge=judge, request_columns=TYPED_COLUMNS if typed else ASKED_COLUMNS
    )


def _parts(truths: Sequence[Any], path: str | None) -> tuple[list[Any], str | None]:
    """What is compared of each ground truth: the field at a path of a mapping, anything else as it is; and
    why there is nothing, where a mapping lacks the field."""
    found = []
    for truth in truths:
        if path is None or not isinstance(truth, Mapping):
            found.append(truth)
            continue
        try:
            found.append(field_at(truth, path))
        except KeyError:
            return [], f"the ground truth has no field {path!r} (it has {', '.join(map(str, truth))})"
    return found, None


def _row_by_row(name: str, judge: Judge, wants_truth: bool, path: str | None) -> JudgeBatch:
    def judge_all(batch: pa.RecordBatch, requests: Sequence[RequestRow], _: Origin) -> Iterator[Judgement]:
        for response, request in zip(batch.column("response").to_pylist(), requests, strict=True):
            started = time.perf_counter()
            truths, missing = _parts(request.values(), path) if wants_truth else ([None], None)
            lost = Verdict(name, error=missing) if missing is not None else None
            verdict = lost or _any_truth(name, judge, response, truths)
            yield [verdict], time.perf_counter() - started

    return judge_all


def _matching(
    name: str, params: RegexMatchParams, wants_truth: bool, path: str | None, seconds: float
) -> JudgeBatch:
    """The built-in with a pattern: where it may run away on a response, in a process that can be killed."""
    here = regex_match(params)

    def judge_all(
        batch: pa.RecordBatch, requests: Sequence[RequestRow], origin: Origin
    ) -> Iterator[Judgement]:
        with KillableProcess("tasks.verdicts.methods:matching", [params], seconds) as process:

            def judge(response: str, truth: Any) -> BuiltInVerdict:
                pattern = params.pattern if params.pattern is not None else as_text(truth)
                if bounded(pattern, [response], params.flags()):
                    return here(response, truth)
                said: BuiltInVerdict | ItemTimeout = process((response, truth))
                if isinstance(said, ItemTimeout):
                    raise TimeoutError(f"the pattern {said.reason}")
                return said

            yield from _row_by_row(name, judge, wants_truth, path)(batch, requests, origin)

    return judge_all


def matching(params: RegexMatchParams) -> Callable[[tuple[str, Any]], BuiltInVerdict]:
    """What the process runs on a response and a ground truth."""
    judge = regex_match(params)
    return lambda given: judge(*given)


def _any_truth(name: str, judge: Judge, response: str | None, truths: Sequence[Any]) -> Verdict:
    """The verdict against the first ground truth that the response meets, else against the first that can be
    compared. Those that can't are left out, whatever the response is: else right answers alone would count.
    """
    if response is None or not truths:
        lacking = "the response has no text to compare" if response is None else NO_TRUTH
        return Verdict(name, error=lacking)
    first: Verdict | None = None
    reason: str | None = None
    for truth in truths:
        try:
            passed, said = judge(response, truth)
        except ValueError as error:
            reason = reason or f"{error}"
            continue
        except TimeoutError as error:
            return Verdict(name, error=f"{error}")
        details = details_json({"detailed_results": said}) if said else None
        verdict = Verdict(name, passed=passed, score=float(passed), details=details)
        if passed:
            return verdict
        first = first or verdict
    return first or Verdict(name, error=reason)


_GIVEN = ("response", "ground_truth", "inference_result")


def user_method(config: EvaluationMethodConfig, function: Callable[..., Any]) -> EvaluationMethod:
    """The method that calls ``function``; raises ConfigError where it does not take what it is given."""
    where = f"evaluation method {config.name!r}: {config.function}"
    given = accepted_keywords(where, function, _GIVEN, config.params)

    def judge(batch: pa.RecordBatch, requests: Sequence[RequestRow], origin: Origin) -> Iterator[Judgement]:
        held = Counter(batch.column("item_id").to_pylist())
        for row, request in zip(response_rows(batch, origin), requests, strict=True):
            row["total_samples"] = _total_samples(request, origin) or held[row["item_id"]]
            row["item"] = orjson.loads(request.document) if request.document else {}
            row["metadata"] = deepcopy(row["metadata"])  # samples share what the function may change
            offered = {
                "response": row["response"],
                "ground_truth": request.ground_truth(),
                "inference_result": row,
            }
            started = time.perf_counter()
            verdicts = _called(config, function, {name: offered[name] for name in given}, row["item"])
            yield verdicts, time.perf_counter() - started

    return EvaluationMethod(
        name=config.name,
        judge=judge,
        response_columns=RESPONSE_COLUMNS,
        request_columns=GIVEN_COLUMNS,
        function=function,
    )


def _total_samples(request: RequestRow, origin: Origin) -> int | None:
    """How many samples an item has by this model and prompt; None where the model's sampling does not say."""
    wanted = (origin.metadata.get("sampling") or {}).get("num_samples")
    return 1 if wanted is not None and request.kind != "generate" else wanted


def _called(
    config: EvaluationMethodConfig,
    function: Callable[..., Any],
    given: Mapping[str, Any],
    item: Mapping[str, Any],
) -> list[Verdict]:
    """What the user's function says; a response that it fails on is unscored, with the reason.

    What it returned and can't be read stays among the details.
    """
    returned = None
    try:
        with users_code():
            returned = function(**given, **deepcopy(config.params))
        return read_verdicts(returned, config.name)
    except Exception as error:
        said = named(error)
        if given.get("ground_truth", item) is None and "NoneType" in said:
            said = _without_truth(said, item)
        said = f"evaluation method {config.name!r}: {said}"
        return [Verdict(label=None, error=said, details=_returned(returned))]


def _without_truth(error: str, item: Mapping[str, Any]) -> str:
    """What to write where a method reads a ground truth that the item does not have."""
    fields = [name for name in item if name not in ("id", "ground_truth")]
    reads_fields = "subscriptable" in error or "attribute" in error
    field = "data" if reads_fields or not fields else fields[-1]
    return (
        f"the item has no ground_truth to read; set dataset: {{path: …, ground_truth: {field}}} ({error}; "
        f"its fields are {', '.join(fields) or 'none'}, and data is all that a row has under data)"
    )


def _returned(value: Any) -> str | None:
    if value is None:
        return None
    try:
        return details_json({"detailed_results": {"returned": value}})
    except ValueError:
        return details_json({"detailed_results": {"returned": repr(value)}})


Row = dict[str, Any]

_TOKENS = ("prompt_tokens", "completion_tokens", "total_tokens")
RESPONSE_COLUMNS = (
    *("item_id", "doc_id", "sample_id", "sample_index", "prompt", "response", "reasoning", "status", "error"),
    "tool_calls_json",
    *("inference_time", "timestamp", "metadata_json"),
    *(*_TOKENS, *RESPONSE_METADATA, *LIKELIHOODS),
)
"""The columns of RESPONSES that the rows are made of."""


def response_rows(batch: pa.RecordBatch, origin: Origin) -> Iterator[Row]:
    """The rows of a batch of RESPONSES with ``RESPONSE_COLUMNS``, in order, without ``total_samples``.

    Log-likelihoods, reasoning and calls of tools appear where there are any.
    """
    columns = {name: plain_values(batch.column(name)) for name in RESPONSE_COLUMNS}
    for values in zip(*columns.values(), strict=True):
        yield _row(dict(zip(columns, values, strict=True)), origin)


def _row(sample: Mapping[str, Any], origin: Origin) -> Row:
    known = metadata(sample, origin)
    row: Row = {
        "item_id": sample["item_id"],
        "sample_id": sample["sample_id"],
        "sample_index": sample["sample_index"],
        "model_name": origin.model_name,
        "prompt_template": origin.prompt_template,
        "prompt": sample["prompt"],
        "response": sample["response"],
        "inference_time": sample["inference_time"],
        "timestamp": sample["timestamp"],
        "timestamp_unix": _recorded(known, SECONDS, unix_seconds(sample["timestamp"])),
        "metadata": known,
        "error": sample["error"],
        "status": sample["status"],
        "tokens_per_second": _recorded(known, RATE, _rate(sample)),
        "total_tokens": sample["total_tokens"],
        "prompt_tokens": sample["prompt_tokens"],
        "completion_tokens": sample["completion_tokens"],
    }
    extra = {name: sample[name] for name in ("reasoning", *LIKELIHOODS) if sample[name] is not None}
    if sample["tool_calls_json"] is not None:
        extra["tool_calls"] = parsed_calls(sample["tool_calls_json"])
    return row | extra


def metadata(sample: Mapping[str, Any], origin: Origin) -> Row:
    """What is known of a response beside its text; what came with a recorded response wins."""
    own = {name: sample[name] for name in RESPONSE_METADATA if sample[name] is not None}
    recorded = sample["metadata_json"]
    return origin.shared_metadata | own | (orjson.loads(recorded) if recorded else {})


RATE, SECONDS = "tokens_per_second", "timestamp_unix"


def _recorded(known: Row, name: str, computed: float | None) -> float | None:
    """A number as it was recorded, which leaves the metadata ``known``; else as it is computed."""
    own = known.get(name)
    if isinstance(own, (int, float)) and not isinstance(own, bool):
        return float(known.pop(name))
    return computed


def _rate(sample: Mapping[str, Any]) -> float | None:
    tokens, seconds = sample["completion_tokens"], sample["inference_time"]
    return tokens / seconds if tokens is not None and seconds else None
