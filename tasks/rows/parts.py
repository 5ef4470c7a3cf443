"""How stages refer to the samples of a pair: parts, their origins, and dotted paths into their rows.

``Part`` names the streams of one model × prompt template × partition, ``locate`` says which artifact
holds the value of a facet. Reduction, evaluation methods and reporting address samples by these records
and nothing else.

A pair, a filter's predictions under one metric, is what the stages of one share.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, runtime_checkable

import numpy as np
import orjson
import pyarrow as pa

from metrics.metric import Metric
from metrics.types import CutOff, Scores
from scorers.base import Batch, SampleScores, Scorer
from scorers.config import ScoringConfig, split_result_name
from scorers.factory import build_scorer
from tasks.store.keys import Answered, Unkeyed
from tasks.store.schemas import RESPONSES
from tasks.store.storage import ArtifactRef, Store
from tasks.usercode.load import resolver

if TYPE_CHECKING:
    from metrics.metric import Metric


Row = dict[str, Any]
"""One row of an artifact, column by column."""
BatchSource = Callable[[Sequence[str]], Iterable[pa.RecordBatch]]
"""Given column names, streams the batches of an artifact with those columns; may be called several times."""


@dataclass(frozen=True)
class Origin:
    """What all samples of one model and one prompt template share.

    ``metadata`` is the shared part of a response's metadata: ``model_id`` (the name sent to the endpoint),
    ``prompt_template`` and ``sampling`` (the parameters sent). ``recording`` says which of the run's files of
    recorded responses they are from, by the order of the config; None: of none.
    """

    model_name: str
    prompt_template: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    recording: int | None = None

    @property
    def shared_metadata(self) -> dict[str, Any]:
        """The metadata of every response: a model without an id of its own is known by its name."""
        return {"model_id": self.model_name, "prompt_template": self.prompt_template, **self.metadata}


@dataclass(frozen=True)
class Part:
    """One model × prompt template × partition of a pair.

    The three sources yield batches of the STATISTICS, REQUESTS and RESPONSES schemas, projected to the
    columns they are called with. ``method`` names the evaluation method that made the statistics; None: a
    metric did.
    """

    origin: Origin
    statistics: BatchSource
    requests: BatchSource
    responses: BatchSource
    method: str | None = None

    @classmethod
    def kept(
        cls,
        store: Store,
        origin: Origin,
        scored: ArtifactRef,
        asked: ArtifactRef,
        answered: Answered,
        method: str | None = None,
    ) -> "Part":
        """One whose rows are in the store."""
        rows = store.batches
        sources = partial(rows, scored), partial(rows, asked), partial(rows, answered.responses)
        return cls(origin, *sources, method)


def file_places(parts: Sequence[Part]) -> list[int]:
    """Where each part's samples stand in a group: parts of one recording stand together, at the first one's
    place, so that their rows can follow the order of the file.

    >>> origins = [Origin("a", "p", {}, at) for at in (0, None, 1, 0)]
    >>> file_places([Part(origin, *[from_batches([])] * 3) for origin in origins])
    [0, 1, 2, 0]
    """
    first: dict[int, int] = {}
    recordings = (part.origin.recording for part in parts)
    return [place if of is None else first.setdefault(of, place) for place, of in enumerate(recordings)]


@dataclass(frozen=True)
class PairIdentity:
    """Which pair is reduced: the benchmark's name, the filter's name and the metric."""

    benchmark: str
    filter: str
    metric: "Metric"


@dataclass(frozen=True)
class FailedPart:
    """A part without statistics, because a step before it failed, and the step's error in words.

    ``label`` is the one label its verdicts would have had (a built-in evaluation method's); None: any but
    ``others``, the labels of other methods. ``method`` names the evaluation method that failed.
    """

    origin: Origin
    error: str
    label: str | None = None
    method: str | None = None
    others: tuple[str, ...] = ()

    def concerns(self, label: str | None) -> bool:
        """Whether verdicts under ``label`` may have been lost."""
        return label == self.label if self.label is not None else label not in self.others


def from_batches(batches: Sequence[pa.RecordBatch]) -> BatchSource:
    """A source over batches that are in memory already.

    >>> batch = pa.RecordBatch.from_pydict({"a": [1], "b": [2]})
    >>> [part.schema.names for part in from_batches([batch])(["b"])]
    [['b']]
    """
    return lambda columns: (batch.select(list(columns)) for batch in batches)


FacetSource = Literal["origin", "request", "document", "response", "metadata", "statistic", "details"]

UNKNOWN: Final = "unknown"
"""The facet value of rows that have none."""

_REQUEST_COLUMNS: Final = frozenset({"item_id", "doc_id", "item_digest", "cluster"})
_STATISTIC_COLUMNS: Final = frozenset({"passed", "scored", "score", "sample_index"})
_RESPONSE_COLUMNS: Final = frozenset(RESPONSES.names) - {"metadata_json", "logprobs_json"}
RESPONSE_METADATA: Final = ("finish_reason", "response_id", "attempts", "served_model", "system_fingerprint")
"""Columns of RESPONSES that an exported response carries inside its ``metadata``."""


def locate(path: str) -> tuple[FacetSource, str]:
    """Where the value of a facet path is read: the source, and the column or the path within it.

    >>> locate("item.subject"), locate("metadata.sampling.temperature")
    (('document', 'subject'), ('metadata', 'sampling.temperature'))
    """
    head, _, rest = path.partition(".")
    if path in ("model_name", "prompt_template"):
        return "origin", path
    if head == "item" and rest:
        return "document", rest
    if rest.startswith("custom_fields.") and head == "metadata":
        return "details", rest
    if head == "metadata" and rest:
        return ("response", rest) if rest in RESPONSE_METADATA else ("metadata", rest)
    if head in ("detailed_results", "custom_fields") and rest:
        return "details", path
    if path in _REQUEST_COLUMNS:
        return "request", path
    if path in _STATISTIC_COLUMNS:
        return "statistic", path
    return ("response", path) if path in _RESPONSE_COLUMNS else ("metadata", path)


def item_field(path: str) -> str | None:
    """The field of the item that a facet path may mean; None for a path that is read elsewhere only.

    A plain name is read from the response's metadata where that has it, else from the item.

    >>> item_field("item.subject"), item_field("subject"), item_field("metadata.subject")
    ('subject', 'subject', None)
    """
    source, rest = locate(path)
    if source == "document":
        return rest
    return path if source == "metadata" and not path.startswith("metadata.") else None


def reads_responses(facets: Iterable[str]) -> bool:
    """Whether facets are read from columns of the responses beside ANSWERS, such as times and ids."""
    return any(locate(facet)[0] == "response" for facet in facets)


def tells_samples_apart(facet: str) -> bool:
    """Whether a facet is of an answer or its score, and so may differ between the samples of an item. Of a
    plain name, which may be the item's or in the answer's metadata, that is not known: False."""
    return locate(facet)[0] in ("response", "statistic", "details")


def resolve(record: Any, path: str) -> Any:
    """The value at a dotted path; None where a step is missing. A key that holds the dots itself wins.

    >>> resolve({"a": {"b": 1}, "a.c": 2}, "a.b"), resolve({"a.c": 2}, "a.c"), resolve({}, "a.b")
    (1, 2, None)
    """
    if not isinstance(record, Mapping):
        return None
    if path in record:
        return record[path]
    head, _, rest = path.partition(".")
    return resolve(record.get(head), rest) if rest else None


def resolve_json(text: str | None, path: str) -> Any:
    """``resolve`` in JSON text; None where there is no text."""
    return None if text is None else resolve(orjson.loads(text), path)


_LABEL_FIELDS: Final = "detailed_results.custom_fields."


def resolve_detail(record: Any, path: str) -> Any:
    """``resolve`` in what a method said: a label's ``custom_fields`` stand in ``detailed_results`` itself,
    and are found where the two-phase framework has them, too.

    >>> resolve_detail({"detailed_results": {"why": "x"}}, "detailed_results.custom_fields.why")
    'x'
    """
    found = resolve(record, path)
    if found is None and path.startswith(_LABEL_FIELDS):
        return resolve(record, "detailed_results." + path.removeprefix(_LABEL_FIELDS))
    return found


def resolve_detail_json(text: str | None, path: str) -> Any:
    """``resolve_detail`` in JSON text; None where there is no text."""
    return None if text is None else resolve_detail(orjson.loads(text), path)


class PairSetup(Unkeyed):
    """Which pair it is, and what its scorer and metric are built from: user functions cross processes by
    name, and ``own_modules`` says that their files are imported for each step alone (see ``UserModules``)."""

    benchmark: str
    scoring: ScoringConfig
    filter: str
    metric: str
    base_dir: str
    own_modules: bool = False
    facets: tuple[str, ...] = ()

    @property
    def cut_off(self) -> CutOff:
        """How an answer is scored that was cut off before it began."""
        return self.scoring.cut_off

    def scorer(self) -> Scorer:
        """The benchmark's scorer."""
        return build_scorer(self.scoring, resolver(self.base_dir, own=self.own_modules))

    def built(self) -> tuple[Scorer, Metric]:
        """The benchmark's scorer, and the pair's metric as it knows it."""
        scorer = self.scorer()
        return scorer, self.metric_record(scorer)

    def metric_record(self, scorer: Scorer | None = None) -> Metric:
        """The pair's metric, as ``scorer`` knows it (default: the benchmark's)."""
        metrics = (scorer or self.scorer()).get_metrics(self.filter)
        return next(entry for entry in metrics if entry.name == self.metric)

    def identity(self, scorer: Scorer | None = None) -> PairIdentity:
        """The pair under the names that results bear: ``process_results`` may name a filter in its metric's
        name."""
        metric, filter_name = split_result_name(self.metric, self.filter)
        record = replace(self.metric_record(scorer), name=metric)
        return PairIdentity(benchmark=self.benchmark, filter=filter_name, metric=record)


@runtime_checkable
class Calibrating(Protocol):
    """A scorer whose numbers rest on how its judge does on answers that people judged."""

    def calibration_batch(self) -> Batch | None:
        """The answers that the judge has not judged yet; None if there are none."""
        ...

    def calibrated(self, judged: SampleScores) -> Scorer:
        """The scorer that knows how the judge did on ``calibration_batch``."""
        ...


def pending(scorer: Scorer) -> Batch | None:
    """The calibration's answers that the scorer's judge still has to judge; None if there are none."""
    return scorer.calibration_batch() if isinstance(scorer, Calibrating) else None


def calibrated_scorer(setup: PairSetup, store: Store, judged: ArtifactRef | None) -> Scorer:
    """The pair's scorer, which knows the grades of ``judged`` where there are any.

    Raises ConfigError where too few answers were judged to say how the judge does.
    """
    scorer = setup.scorer()
    if judged is None:
        return scorer
    assert isinstance(scorer, Calibrating), "only such a scorer has a calibration to judge"
    table = store.table(judged, ["scored", "score"])
    grades = np.asarray(table.column("score").fill_null(np.nan).to_numpy(), dtype=np.float64)
    scored = np.asarray(table.column("scored").to_numpy(), dtype=np.bool_)
    return scorer.calibrated(
        SampleScores(
            scores=Scores(statistics=None, values=None, score=grades),
            scored=scored,
            codes=np.full(len(grades), -1, dtype=np.int64),
            errors=[None] * len(grades),
        )
    )
