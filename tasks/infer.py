"""Stage "infer": requests go to a model, and what comes back is kept."""

import time
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from prefect import task

from metrics.errors import NightjarError
from tasks.caching import Workspace, cached_task
from tasks.datasets.item import RequestKind
from tasks.inspecting import FOLDER, Block, InspectRun, block_rows, forget, run_block
from tasks.limits import lease
from tasks.messages.media import kept_media
from tasks.models.answers.segments import AnswerStore, DamagedAnswers
from tasks.models.config import ErrorBudget, ModelConfig, Prices, RunLimits, SampleParams
from tasks.models.connection import probe
from tasks.models.control import check_run
from tasks.models.identity import EXPANDED
from tasks.models.limits.spending import OPEN_ACCOUNTS
from tasks.models.providers.provider import AnyProvider, provider_of
from tasks.models.records import EVERY, InferenceOptions, Lookup, asker_of
from tasks.models.respond import MissingRequests, count_missing, given_answers, kept_responses, respond
from tasks.models.served import room_of
from tasks.models.tally import PartitionResponses, RequestTally, note_spent, spent_before
from tasks.processes.workers import workers
from tasks.rows.running import RunningScore
from tasks.run_page import progress_of
from tasks.secrets import secret
from tasks.serving.servers import RunningServer
from tasks.store.errors import STORE_LOG
from tasks.store.keys import Accounts, Answered, Step, Unkeyed, digest
from tasks.store.schemas import ANSWERS, RESPONSES
from tasks.store.storage import ArtifactRef


class Served(Unkeyed):
    """A server of a model's weights, as the task ``serve`` gives it; none where no answer is missing, or the
    model is served elsewhere."""

    server: RunningServer | None = None


NOT_SERVED = Served()
"""What inference is given without a server: as all that can't change an answer, it is in no key."""


class Batched(Unkeyed):
    """The batches that have asked some of the requests, by the names of their records, and why the others are
    not asked, where a limit left them out."""

    names: tuple[str, ...] = ()
    left_out: str | None = None


NOT_BATCHED = Batched()
"""What inference is given where all requests are asked one by one."""


class InferSetup(Unkeyed):
    """The model, how it is sampled, and what it may take.

    ``lookup`` says which kept answers serve, ``night`` stands beside what is asked for now, ``run_id`` names
    what people stop and pause, and ``account`` what limits apply to.
    """

    model: ModelConfig
    sampling: SampleParams
    errors: ErrorBudget
    limits: RunLimits
    prices: Prices
    base_dir: str
    role: Literal["model", "judge"] = "model"
    lookup: Lookup = EVERY
    night: str | None = None
    run_id: str | None = None
    account: str | None = None
    running: RunningScore | None = None
    """What is scored while it is asked, for those who watch."""
    inspect: InspectRun | None = None
    """The task of Inspect that asks, where one does."""

    @property
    def provider(self) -> AnyProvider:
        """How the model is asked; raises ConfigError for one in a user's file that can't be loaded."""
        return provider_of(self.model, Path(self.base_dir))

    @property
    def by_batch(self) -> bool:
        """Whether the model is asked by batches."""
        return self.model.by_batch

    def asker(self, key: str, step: str) -> str:
        """The name of a step's inference under a key in this attempt at the run: what asks, whichever process
        does. Steps that ask the same, a judge behind two filters say, have one key."""
        account = self.account or uuid.uuid4().hex
        own = digest({"account": account, "infer": key, "step": step})
        return asker_of(self.lookup.run or account, own)

    def options(
        self,
        workspace: Workspace,
        server: RunningServer | None = None,
        batched: Batched = NOT_BATCHED,
    ) -> InferenceOptions:
        """The options of the engine; requests go to ``server`` where the model is served here, or were asked
        by ``batched``."""
        return InferenceOptions(
            sampling=self.sampling,
            journal_dir=Path(workspace.journal_dir),
            limits=self.limits,
            price=self.prices.of(self.model.name),
            run_id=self.run_id,
            account=self.account,
            night=self.night,
            lookup=self.lookup,
            base_dir=Path(self.base_dir),
            media=partial(kept_media, workspace.open()),
            server=server,
            batches=batched.names,
            left_out=batched.left_out,
            secret=secret,
            lease=partial(lease, check=partial(check_run, self.run_id)),
        )


REPAIRS = 3
"""How many damaged segments of answers one step lives through."""


class BudgetExceeded(NightjarError):
    """More requests failed than ``errors.max_rate`` allows."""


def given_now(answered: Answered, arguments: Mapping[str, Any]) -> bool:
    """Whether the answers that an inference gave are those that its lookup gives now: another night may have
    asked since."""
    step, requests, workspace = (arguments[name] for name in ("step", "requests", "workspace"))
    setup, store = step.setup, workspace.open()
    if setup.inspect is not None:
        # Whether what Inspect's task came to counts: asked in the night and at the time that is wanted.
        lookup: Lookup = setup.lookup
        return lookup.serves(answered.accounts.night, float(answered.accounts.given or 0))
    columns = list(EXPANDED)
    given = given_answers(
        setup.model, store.batches(requests, columns), AnswerStore(store), setup.options(workspace)
    )
    return given == answered.accounts.given


@cached_task("infer", still_holds=given_now)
def infer(
    step: Step[InferSetup],
    requests: ArtifactRef,
    workspace: Workspace,
    server: Served = NOT_SERVED,
    batched: Batched = NOT_BATCHED,
) -> Answered:
    """Asks for what is not answered yet; a failed request is a row that says so and makes the result worth
    asking again. ``server`` answers for a model that is served here; without one nothing can be missing.
    What came in ``batched`` is taken as replies."""
    setup, store = step.setup, workspace.open()
    if setup.inspect is not None:
        return evaluated_block(setup, setup.inspect, requests, workspace)
    if not setup.provider.asks:
        answered: Answered = workers().compute(recorded_answers, setup, requests, workspace)
        return answered
    with ExitStack() as stack:
        progress = stack.enter_context(progress_of(setup.model.name, step.name))
        if setup.running is not None:
            progress = stack.enter_context(setup.running.watching(progress))
        options = setup.options(workspace, server.server, batched)
        asker = setup.asker(workspace.key, step.name)
        # A retry, with an asker of its own, takes the place of what it tries again.
        spent = stack.enter_context(_spent_by(asker, (setup.run_id or asker, workspace.key, step.name)))
        for attempt in range(REPAIRS + 1):
            options = replace(options, asker=asker, counted=frozenset(spent.askers))
            responded = respond(setup.model, store.batches(requests), AnswerStore(store), options, progress)
            try:
                ref = store.write("infer", workspace.key, RESPONSES, responded.batches, ANSWERS)
                break
            except Exception as error:
                note_spent(error, responded.tally)
                if not isinstance(error, DamagedAnswers) or attempt == REPAIRS:
                    raise
                STORE_LOG.warning("%s", error)  # what was lost counts as missing now, and is asked for
                spent.add(asker, responded.tally)
    return _answered(setup, ref, responded.tally.after(spent.tallies), responded)


@dataclass(frozen=True)
class Spent:
    """What earlier tries at an inference came to, and by which names they asked."""

    askers: set[str] = field(default_factory=set)
    tallies: list[RequestTally] = field(default_factory=list)

    def add(self, asker: str, tally: RequestTally) -> None:
        """Takes one more."""
        self.askers.add(asker)
        self.tallies.append(tally)


@contextmanager
def _spent_by(asker: str, inference: tuple[str, ...]) -> Iterator[Spent]:
    """What earlier tries at an inference have asked in this process, for the block that tries again. Where it
    fails, its error says what all of them have."""
    spent = _spent.get(inference, Spent())
    try:
        yield spent
    except Exception as error:
        if (tally := spent_before(error)) is not None and tally.sent:
            spent.add(asker, tally)
        if spent.tallies:
            note_spent(error, RequestTally().after(spent.tallies))
            _spent[inference] = spent
            while len(_spent) > OPEN_ACCOUNTS:
                _spent.popitem(last=False)
        raise
    _spent.pop(inference, None)


_spent: OrderedDict[tuple[str, ...], Spent] = OrderedDict()


def recorded_answers(setup: InferSetup, requests: ArtifactRef, workspace: Workspace) -> Answered:
    """The recorded answers to requests, kept under the step's key: nothing is asked, and any process may do
    it."""
    store = workspace.open()
    responded = respond(setup.model, store.batches(requests), AnswerStore(store), setup.options(workspace))
    ref = store.write("infer", workspace.key, RESPONSES, responded.batches, ANSWERS)
    return _answered(setup, ref, responded.tally, responded)


def evaluated_block(
    setup: InferSetup, run: InspectRun, requests: ArtifactRef, workspace: Workspace
) -> Answered:
    """What a task of Inspect made of the samples that the requests are of, kept under the step's key.

    A sample that ended with an error is a failed request. The log of a block with such samples, or of one
    that was killed, stays until a run has gone on with it.
    """
    store, started = workspace.open(), time.monotonic()
    night = setup.lookup.night
    block = Block(
        run,
        setup.model,
        setup.sampling,
        Path(setup.base_dir),
        [str(name) for batch in store.batches(requests, ["item_id"]) for name in batch.column(0).to_pylist()],
        Path(workspace.journal_dir) / FOLDER / digest({"key": workspace.key, "night": night})[:32],
        setup.lookup.not_before,
    )
    ran = run_block(block, secret, partial(check_run, setup.run_id))
    tally = RequestTally()
    rows = block_rows(block, ran, store.batches(requests), setup.prices.of(setup.model.name), tally)
    # What was said before the answer stands in the prompt, as in a conversation of ours.
    ref = store.write("transcript", workspace.key, RESPONSES, rows, ANSWERS)
    tally.wall_seconds = time.monotonic() - started
    if not tally.failed:
        forget(block.folder)
    return Answered(
        responses=ref.model_copy(update={"retryable": tally.retryable}),
        accounts=Accounts(tally=tally.as_dict(), given=str(ran.began), night=setup.night),
    )


def _answered(
    setup: InferSetup, ref: ArtifactRef, tally: RequestTally, responded: PartitionResponses
) -> Answered:
    return Answered(
        responses=ref.model_copy(update={"retryable": tally.retryable}),
        accounts=Accounts(tally=tally.as_dict(), given=responded.given.hexdigest(), night=setup.night),
    )


@task(name="errors", task_run_name="{step.run_name}", persist_result=False)
def check_errors(step: Step[ErrorBudget], tally: Accounts) -> None:
    """Fails where more requests failed than the config allows: what was answered is scored and published
    all the same."""
    counts = RequestTally.from_dict(tally.tally)
    if counts.error_rate > step.setup.max_rate:
        reasons = sorted(counts.errors.items(), key=lambda entry: -entry[1])[:3]
        causes = [f"{count} × {reason}" for reason, count in reasons]
        said = "; ".join([*causes, counts.stopped] if counts.stopped else causes)
        raise BudgetExceeded(
            f"{counts.failed} of {counts.requests} requests failed, "
            f"errors.max_rate allows {step.setup.max_rate:.2%}" + (f" ({said})" if said else "")
        )


def probe_model(setup: InferSetup, kind: RequestKind) -> tuple[dict[str, Any], str | None]:
    """What the model's endpoint says it serves and of itself, and a warning where that lacks the model.

    ``kind`` is what will be asked: "generate", or log-likelihoods. Raises NightjarError where that can't be.
    """
    if kind == "generate":
        room_of(setup.model, setup.sampling)  # a prompt that no token is left for is refused before asking
    model = setup.model.model_copy(update={"sample_params": setup.sampling})
    found = probe(model, kind, secret, Path(setup.base_dir))
    about = {"base_url": found.base_url, "model": found.model, "served": list(found.served)}
    return about | {"says": dict(found.says)}, found.warning


def missing_requests(
    step: Step[InferSetup], requests: Iterable[pa.RecordBatch], workspace: Workspace
) -> tuple[MissingRequests, int]:
    """How many of the requests have no answer in the store yet, and how many there are."""
    setup, total = step.setup, 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal total
        for batch in requests:
            total += _requests_in(batch, setup.sampling.num_samples)
            yield batch

    lacking = count_missing(setup.model, counted(), AnswerStore(workspace.open()), setup.options(workspace))
    return lacking, total


def kept_rows(
    step: Step[InferSetup], requests: Iterable[pa.RecordBatch], workspace: Workspace
) -> tuple[MissingRequests, list[pa.RecordBatch]]:
    """How many of the requests have no answer in the store yet, and the rows of RESPONSES as they would be
    without asking: status infra_error where there is no answer."""
    setup, answers, asked = step.setup, AnswerStore(workspace.open()), list(requests)
    for _ in range(REPAIRS):
        with suppress(DamagedAnswers):  # what was lost counts as missing now
            missing, rows = kept_responses(setup.model, asked, answers, setup.options(workspace))
            return missing, list(rows)
    missing, rows = kept_responses(setup.model, asked, answers, setup.options(workspace))
    return missing, list(rows)


def _requests_in(batch: pa.RecordBatch, samples: int) -> int:
    generates = pc.equal(batch.column("kind"), "generate")
    others = batch.filter(pc.invert(generates))
    lengths = [
        pc.sum(pc.list_value_length(others.column(name))).as_py() or 0
        for name in ("prompts", "unconditional")
    ]
    return (pc.sum(generates).as_py() or 0) * samples + sum(lengths)
