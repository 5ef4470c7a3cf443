"""Stage "ask": what a scorer wants to know of a model (a judge, a reward model) becomes requests like any
other.

They go through the same inference as the evaluated models' and are cached, retried, limited and accounted
in the same way. A reply that can't be read is asked for again by the next run, under a new attempt number:
never in a loop, and never what could be read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import orjson
import pyarrow as pa

from metrics.metric import Metric
from scorers.base import Batch, ModelReply, Scorer, ScorerRequest
from scorers.grading import ask_again
from tasks.caching import Workspace, artifact_task
from tasks.messages.endings import is_at_limit
from tasks.rows.limited import LimitedScorer, legible
from tasks.rows.parts import PairSetup, pending
from tasks.rows.scoring import joined_batches, statistics_batch
from tasks.store.keys import Answered, Step
from tasks.store.schemas import REQUESTS, STATISTICS, row_batch
from tasks.store.storage import ArtifactRef, Store


class AskSetup(PairSetup):
    """One model that is asked: requests of a pair for this judge with this sampling. Attempts count from
    0."""

    judge: str
    sampling: str
    """Canonical JSON of the sampling parameters that the scorer asks with."""
    attempt: int = 0


@artifact_task("ask", REQUESTS)
def ask(
    step: Step[AskSetup],
    requests: ArtifactRef,
    predictions: ArtifactRef,
    answered: Answered,
    asked: Sequence[ArtifactRef],
    replied: Sequence[Answered],
    workspace: Workspace,
) -> Iterator[pa.RecordBatch]:
    """The first attempt asks everything; a later one what of ``asked`` was answered (``replied``)
    unreadably."""
    store = workspace.open()
    parts = joined_batches(store, requests, predictions, answered.responses, step.setup.cut_off)
    yield from asked_rows(step.setup, (part.batch for part in parts), replies_of(store, asked, replied))


@artifact_task("score", STATISTICS)
def score_replies(
    step: Step[PairSetup],
    requests: ArtifactRef,
    predictions: ArtifactRef,
    answered: Answered,
    asked: Sequence[ArtifactRef],
    replied: Sequence[Answered],
    workspace: Workspace,
) -> Iterator[pa.RecordBatch]:
    """A pair's scores from the replies to its requests; a request without a readable reply leaves its
    sample unscored."""
    store = workspace.open()
    replies = PlacedReplies(step.setup, replies_of(store, asked, replied))
    with LimitedScorer(step.setup) as scorer:
        whole = scorer.takes_answer
        for part in joined_batches(
            store, requests, predictions, answered.responses, step.setup.cut_off, whole
        ):
            given = replies.take(scorer.requests(part.batch))
            yield statistics_batch(part.samples, scorer.score(part.batch, given))


def asked_rows(
    setup: AskSetup, batches: Iterable[Batch], replies: Mapping[int, ModelReply]
) -> Iterator[pa.RecordBatch]:
    """REQUESTS rows of one attempt: what is wanted of the setup's judge about ``batches``, after ``replies``
    by place."""
    scorer = setup.scorer()
    metric = setup.metric_record(scorer)
    placed = PlacedReplies(setup, replies)
    for batch in batches:
        first = placed.place
        given = placed.take(scorer.count_requests(batch, metric))
        rows = [
            _row(place, batch, request)
            for place, request in enumerate(_attempted(scorer, batch, metric, given, setup.attempt), first)
            if request is not None and request.judge == setup.judge and _sampling(request) == setup.sampling
        ]
        yield row_batch(rows, REQUESTS)


class PlacedReplies:
    """The replies to a pair's requests, taken batch by batch in the order of the requests; ``place`` is the
    next one's."""

    def __init__(self, setup: PairSetup, replies: Mapping[int, ModelReply]) -> None:
        self.place = 0
        self._replies = legible(setup.scoring.scorer, replies, setup.scoring.item_timeout)

    def take(self, count: int) -> list[ModelReply | None]:
        """The replies to so many requests; None for one without a reply."""
        first, self.place = self.place, self.place + count
        return [self._replies.get(place) for place in range(first, self.place)]


def replies_of(
    store: Store, asked: Sequence[ArtifactRef], replied: Sequence[Answered]
) -> dict[int, ModelReply]:
    """The latest reply to each request by its place among the pair's requests; attempts come in order.

    A later attempt that failed does not take back what an earlier one had said.
    """
    found: dict[int, ModelReply] = {}
    for _, answered in zip(asked, replied, strict=True):
        columns = ["doc_id", "status", "response", "error", "finish_reason"]
        for batch in store.batches(answered.responses, columns):
            for row in batch.to_pylist():
                # A judge whose tokens were used up has replied: with nothing that could be read.
                text = {"ok": row["response"], "cut_off": ""}.get(row["status"])
                if text is not None or row["doc_id"] not in found:
                    cut = is_at_limit(row["finish_reason"])
                    found[row["doc_id"]] = ModelReply(text=text, error=row["error"], cut=cut)
    return found


def _attempted(
    scorer: Scorer, batch: Batch, metric: Metric, given: Sequence[ModelReply | None], attempt: int
) -> Sequence[ScorerRequest | None]:
    """Beside each request what is sent in this attempt: everything in the first, then what could not be
    read; nothing at all where all replies could be, which renders no prompt."""
    if attempt and not any(scorer.unreadable(batch, metric, given)):
        return ()
    wanted = scorer.requests(batch, metric)
    again: Sequence[ScorerRequest | None] = wanted
    for _ in range(attempt):
        # Each attempt is numbered from the one before; which replies were unreadable is the same question
        # each time.
        current = [request or wanted[offset] for offset, request in enumerate(again)]
        again = ask_again(scorer, batch, metric, current, given)
    return again


def sampling_text(sampling: object) -> str:
    """Sampling parameters as one comparable text."""
    return orjson.dumps(sampling, option=orjson.OPT_SORT_KEYS).decode()


def _sampling(request: ScorerRequest) -> str:
    return sampling_text(dict(request.sampling))


def _row(place: int, batch: Batch, request: ScorerRequest) -> dict[str, object]:
    chat = not isinstance(request.prompt, str)
    prompt = orjson.dumps(request.prompt).decode() if chat else request.prompt
    return {
        "item_id": f"{batch.item_ids[request.row]}_{int(batch.sample_index[request.row])}_{place}",
        "doc_id": place,
        "item_digest": "",
        "prompt_template": request.judge,
        "kind": "generate",
        "chat": chat,
        "prompts": [prompt],
        "continuations": [""],
        "unconditional": [],
        "references_json": "[]",
        "gold": [],
        "choices": [],
        "doc_json": "{}",
        "first_sample": request.sample_index,
    }


@artifact_task("ask", REQUESTS)
def ask_calibration(
    step: Step[AskSetup], asked: Sequence[ArtifactRef], replied: Sequence[Answered], workspace: Workspace
) -> Iterator[pa.RecordBatch]:
    """What a judge is asked about the calibration's answers; attempts as in ``ask``."""
    batch = pending(step.setup.scorer())
    yield from asked_rows(step.setup, [batch] if batch else [], replies_of(workspace.open(), asked, replied))


@artifact_task("score", STATISTICS)
def score_calibration(
    step: Step[PairSetup], asked: Sequence[ArtifactRef], replied: Sequence[Answered], workspace: Workspace
) -> Iterator[pa.RecordBatch]:
    """The judge's grades of the calibration's answers, row for row."""
    scorer = step.setup.scorer()
    metric, batch = step.setup.metric_record(scorer), pending(scorer)
    assert batch is not None, "the plan makes this step for verdicts that are not given"
    scoring = step.setup.scoring
    replies = legible(scoring.scorer, replies_of(workspace.open(), asked, replied), scoring.item_timeout)
    given = [replies.get(place) for place in range(scorer.count_requests(batch, metric))]
    samples = pa.table(
        {
            "item_id": pa.array(batch.item_ids, pa.string()),
            "doc_id": pa.array(range(len(batch)), pa.int64()),
            "sample_index": pa.array(batch.sample_index, pa.int32()),
            "outcome": pa.array(["answered"] * len(batch), pa.string()),
        }
    )
    yield statistics_batch(samples, scorer.score(batch, metric, given))
