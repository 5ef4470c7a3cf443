"""What a run would send and compute, found without running it: for ``--dry-run``, and for the preflight.

The forecast goes through the declared stages as the flow does, and looks each step up instead of submitting
it. Where a record is missing, what follows from what is there (items, requests) is made in memory by the
stage's own function; what a model would be asked is counted; of the rest it is known which step it waits for.

What the turns of conversations would ask is found as far as what was answered tells. A turn's requests hold
all that was said before. A conversation with an answer missing is told by bounds: it goes on where a template
speaks, may end where a tool or a simulated user does.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from prefect import Task

from flows.config.schema import Phase
from flows.graph.stage import Graph
from flows.graph.stages import walk
from flows.plan.steps import AskedModel, PairPlan, Plan
from metrics.errors import NightjarError
from metrics.json_values import leaves
from tasks.ask import AskSetup
from tasks.caching import Workspace, peek
from tasks.infer import InferSetup, kept_rows, missing_requests
from tasks.load import load
from tasks.models.respond import MissingRequests
from tasks.store.keys import Accounts, Answered, Step
from tasks.store.storage import ArtifactRef, Store
from tasks.turns import TurnSetup, ask_user, next_turn

CACHED, TO_COMPUTE = "cached", "to compute"


@dataclass(frozen=True)
class RequestCount:
    """Requests that would be sent and that are answered already.

    ``send`` is what surely would be, None where it takes responses to know; ``more`` may be sent besides, as
    conversations go on. Of the answered ones, ``equal`` have no answer yet: they are equal to one that would
    be sent, whose answer is theirs.
    """

    send: int | None
    answered: int
    more: int = 0
    equal: int = 0

    def __add__(self, other: "RequestCount") -> "RequestCount":
        known = self.send is not None and other.send is not None
        send = (self.send or 0) + (other.send or 0) if known else None
        answered, more = self.answered + other.answered, self.more + other.more
        return RequestCount(send, answered, more, self.equal + other.equal)

    @property
    def most(self) -> int | None:
        """The most that would be sent; None where it takes responses to know."""
        return None if self.send is None else self.send + self.more

    def as_dict(self) -> dict[str, int | None]:
        """As ``--dry-run --json`` prints it."""
        beyond = {"to_send_at_most": self.most} if self.more else {}
        equal = {"equal": self.equal} if self.equal else {}
        return {"to_send": self.send, **beyond, "cached": self.answered, **equal}


NOTHING = RequestCount(0, 0)


@dataclass(frozen=True)
class TurnCount:
    """Requests of a turn, counted from 1, to the model that answers, or to the one that speaks for the user
    before it."""

    turn: int
    model: str
    count: RequestCount
    is_user: bool = False


class MadeStore(Store):
    """The store of a run, and rows that are made in memory each time that they are read; nothing is written
    there."""

    def __init__(self, store: Store) -> None:
        vars(self).update(vars(store))  # what that has verified is verified here
        self._makers: dict[str, Callable[[], Iterator[pa.RecordBatch]]] = {}

    def made(self, maker: Callable[[], Iterator[pa.RecordBatch]]) -> ArtifactRef:
        """A reference that the rows of ``maker`` are read by."""
        key = f"made {len(self._makers)}"
        self._makers[key] = maker
        return ArtifactRef(kind="made", key=key, digest="", rows=0, bytes=0)

    def batches(
        self,
        ref: ArtifactRef,
        columns: Sequence[str] | None = None,
        size: int = 4_096,
        rows: tuple[int, int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """As the store's, of made rows too."""
        if ref.key not in self._makers:
            yield from super().batches(ref, columns, size, rows)
            return
        start, stop = rows or (0, None)
        position = 0
        for batch in self._makers[ref.key]():
            first = max(start - position, 0)
            last = batch.num_rows if stop is None else min(stop - position, batch.num_rows)
            if first < last:
                part = batch.slice(first, last - first)
                yield part if columns is None else part.select(list(columns))
            position += batch.num_rows
            if stop is not None and position >= stop:
                return

    def put_bytes(self, name: str, content: bytes, patience: float | None = None) -> None:
        """Writes nothing: what a prompt shows is put into the store by a run."""


class MadeWorkspace(Workspace):
    """A run's workspace with a store that holds made rows."""

    def open(self) -> Store:
        """One store for each workspace."""
        return self.opened

    @cached_property
    def opened(self) -> MadeStore:
        """The store."""
        return MadeStore(super().open())


@dataclass(eq=False)
class Foreseen:
    """A task run that a run would submit.

    ``kept`` is its result, if the store has it. Else ``waits_for`` names the step whose outcome decides its
    inputs; None: they are known, and it would be computed. ``rows`` is a reference to rows made in memory,
    where these follow from what is there; ``unsure`` conversations are not among them, and ``sure`` of those
    surely go on.
    """

    task: Task[..., Any]
    step: Step[Any]
    pair: PairPlan | None
    kept: Any = None
    waits_for: str | None = None
    rows: Any = None
    sure: int = 0
    unsure: int = 0

    @property
    def known(self) -> Any:
        """What a step that follows from it can be made of: the kept result, or made rows; None for
        neither."""
        return self.kept if self.kept is not None else self.rows

    @property
    def decides(self) -> str:
        """The step that those depending on this one wait for."""
        return self.waits_for or self.step.name

    @property
    def state(self) -> str:
        """What a run would do about it."""
        if self.kept is not None:
            return CACHED
        return TO_COMPUTE if self.waits_for is None else f"depends on {self.waits_for}"


@dataclass(eq=False)
class ForeseenAnswers(Foreseen):
    """An inference that a run would submit; its requests are counted once somebody asks for the count."""

    requests: Foreseen = field(kw_only=True)
    workspace: MadeWorkspace = field(kw_only=True)

    @property
    def is_user(self) -> bool:
        """Whether a model is asked to speak for the user."""
        return self.requests.task is ask_user

    @property
    def is_for_scorer(self) -> bool:
        """Whether a scorer asks."""
        return isinstance(self.requests.step.setup, AskSetup)

    @property
    def turn(self) -> int:
        """Of a conversation, counted from 1."""
        setup = self.requests.step.setup
        return setup.turn if isinstance(setup, TurnSetup) else 1

    @cached_property
    def count(self) -> RequestCount:
        """The requests that would be sent, and those that are answered."""
        asked, more = self.requests, self.requests.unsure - self.requests.sure
        if self.kept is not None:
            return RequestCount(asked.sure, int(self.kept.accounts.tally["requests"]), more)
        if asked.known is None:
            return RequestCount(None, 0)
        missing, total = self._missing
        kept = total - missing.sent - missing.unaskable
        return RequestCount(missing.sent + asked.sure, kept, more, missing.equal)

    @cached_property
    def missing(self) -> int:
        """Requests without an answer, of those that are known; nothing is where a run has asked for all."""
        return 0 if self.kept is not None else self._missing[0].sent

    @cached_property
    def so_far(self) -> Any:
        """The responses as far as they are kept: status infra_error where there is none."""
        if self.kept is not None or self.requests.known is None:
            return self.kept
        ref = self.workspace.opened.made(lambda: iter(self._kept_rows[1]))
        return Answered(responses=ref, accounts=Accounts(tally={}))

    @cached_property
    def lost(self) -> int:
        """Conversations whose answer is missing: what is said in them from there on nobody knows."""
        if self.kept is not None or self.requests.known is None:
            return 0
        lacking, rows = self._kept_rows
        failed: int = sum(batch.column("status").to_pylist().count("infra_error") for batch in rows)
        return failed - lacking.unaskable

    @cached_property
    def _missing(self) -> tuple[MissingRequests, int]:
        if "_kept_rows" in self.__dict__:
            missing, rows = self._kept_rows
            return missing, sum(batch.num_rows for batch in rows)
        return missing_requests(self.step, self._asked(), self.workspace)

    @cached_property
    def _kept_rows(self) -> tuple[MissingRequests, list[pa.RecordBatch]]:
        return kept_rows(self.step, self._asked(), self.workspace)

    def _asked(self) -> Iterator[pa.RecordBatch]:
        return self.workspace.opened.batches(self.requests.known)


class ForeseenRun(Graph):
    """Looks up the steps of a plan instead of submitting them; sends nothing and writes nothing."""

    def __init__(self, plan: Plan, workspace: Workspace) -> None:
        self.plan = plan
        self.workspace: MadeWorkspace = MadeWorkspace(**dict(workspace))
        self.submitted: list[Foreseen] = []
        self.broken: dict[str, str] = {}
        """Requests of scorers that fail on what a model has said, by their steps, and how: a run fails these
        alone."""

    @property
    def asked(self) -> list[ForeseenAnswers]:
        """Every inference, in order."""
        return [entry for entry in self.submitted if isinstance(entry, ForeseenAnswers)]

    def rows(self, node: Foreseen) -> int | None:
        """Makes them where they are not kept."""
        if node.kept is not None:
            return int(node.kept.rows)
        if node.rows is None:
            return None
        made: Iterator[pa.RecordBatch] = self.workspace.opened.batches(node.rows)
        return sum(int(batch.num_rows) for batch in made)

    def is_cached(self, node: Foreseen) -> bool:
        """Whether the record is there."""
        return node.kept is not None

    def replied_earlier(self, replies: Sequence[Foreseen]) -> bool:
        """What a run would send is taken to be replied to."""
        return all(self.is_cached(reply) for reply in replies)

    def failure(self, node: Foreseen) -> str | None:
        """Nobody knows beforehand what fails."""
        return None

    def batches(self, node: Foreseen, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Of what is kept."""
        if node.kept is not None:
            yield from self.workspace.opened.batches(node.kept, columns)

    def _submit(
        self, task: Task[..., Any], step: Step[Any], *inputs: Any, pair: PairPlan | None = None, **named: Any
    ) -> Foreseen:
        at = self.at
        assert at is not None, "submit checked it"
        waits_for = next((entry.decides for entry in _nodes(inputs) if entry.known is None), None)
        kept = None
        if all(entry.kept is not None for entry in _nodes(inputs)):
            kept = peek(task, step, *_each(inputs, lambda entry: entry.kept), workspace=self.workspace)
        node = Foreseen(task, step, pair, kept, waits_for)
        if task in at.asks:
            node = ForeseenAnswers(
                task, step, pair, kept, waits_for, requests=inputs[0], workspace=self.workspace
            )
        elif task in at.goes_on:
            self._go_on(node, inputs)
        elif task in at.makes and kept is None and waits_for is None:
            node.rows = self._made(node, _each(inputs, lambda entry: entry.known))
        self.submitted.append(node)
        return node

    def _go_on(self, node: Foreseen, inputs: tuple[Any, ...]) -> None:
        """Gives a turn's requests the rows of the conversations that are known, and counts the others."""
        before, *answers = _nodes(inputs)
        if node.kept is None and all(_so_far(entry) is not None for entry in (before, *answers)):
            node.rows, node.waits_for = self._made(node, _each(inputs, _so_far)), None
        said = [entry for entry in answers if isinstance(entry, ForeseenAnswers)]
        node.unsure = before.unsure + sum(entry.lost for entry in said)
        goes_on = node.task is ask_user or (node.task is next_turn and not _may_end(node.step.setup))
        node.sure = before.sure + sum(entry.missing for entry in said) if goes_on else 0

    def _made(self, node: Foreseen, inputs: tuple[Any, ...]) -> ArtifactRef:
        """The rows that the stage's own function makes of known inputs; of what follows on answers, those
        before the first that it fails on."""

        def rows() -> Iterator[pa.RecordBatch]:
            try:
                yield from inspect.unwrap(node.task.fn)(node.step, *inputs, workspace=self.workspace)
            except NightjarError as error:
                if not isinstance(node.step.setup, AskSetup):
                    raise
                self.broken[node.step.name] = f"{node.step.name}: {error}"

        return self.workspace.opened.made(rows)


def _so_far(entry: Foreseen) -> Any:
    return entry.so_far if isinstance(entry, ForeseenAnswers) else entry.known


def _nodes(inputs: Any) -> list[Foreseen]:
    """Every task run among the inputs, whatever they are nested in."""
    return [leaf for leaf in leaves(inputs) if isinstance(leaf, Foreseen)]


def _each(value: Any, read: Callable[[Foreseen], Any]) -> Any:
    """The inputs with each task run replaced by what is read of it."""
    if isinstance(value, Foreseen):
        return read(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_each(entry, read) for entry in value)
    if isinstance(value, dict):
        return {name: _each(entry, read) for name, entry in value.items()}
    return value


def _may_end(setup: TurnSetup) -> bool:
    """Whether nothing may be said in a turn: an answer without calls has no results of tools, and a template
    of fields or conditions alone may come out empty."""
    written = setup.template
    return setup.role == "tool" or "{%" in written or not _FIELDS.sub("", written).strip()


_FIELDS: Final = re.compile(r"\{\{.*?\}\}|\{#.*?#\}", re.DOTALL)


@dataclass(frozen=True)
class Forecast:
    """Requests by model, by judge and by model that speaks for users; of models and users also turn by turn,
    in order. Pairs by name, and what a run would do about them. ``broken`` says what would fail."""

    items: int
    models: Mapping[str, RequestCount]
    judges: Mapping[str, RequestCount]
    pairs: Mapping[str, str]
    users: Mapping[str, RequestCount] = field(default_factory=dict)
    turns: Sequence[TurnCount] = ()
    broken: Sequence[str] = ()

    @property
    def to_send(self) -> int | None:
        """The most requests to the models that are evaluated; None where it takes responses to know."""
        return sum(self.models.values(), NOTHING).most

    def as_dict(self) -> dict[str, Any]:
        """As ``--dry-run --json`` prints it; the sums are of what is known."""
        counts = [*self.models.values(), *self.judges.values(), *self.users.values()]
        total = sum((replace(count, send=count.send or 0) for count in counts), NOTHING)
        return {
            "items": self.items,
            "requests": total.as_dict(),
            "models": {name: count.as_dict() for name, count in self.models.items()},
            "judges": {name: count.as_dict() for name, count in self.judges.items()},
            "users": {name: count.as_dict() for name, count in self.users.items()},
            "turns": [
                {"turn": entry.turn, "model": entry.model, "user": entry.is_user, **entry.count.as_dict()}
                for entry in self.turns
            ],
            "pairs": [
                {
                    "metric": name.rpartition(",")[0],
                    "filter": name.rpartition(",")[2],
                    "cached": state == CACHED,
                    "state": state,
                }
                for name, state in self.pairs.items()
            ],
        }

    def unscored(self) -> list[str]:
        """Pairs whose numbers are not all there."""
        return [name for name, state in self.pairs.items() if state != CACHED]

    def unanswered(self, plan: "Plan") -> "Unanswered":
        """Whose endpoints the run would ask."""
        models = [name for name, count in self.models.items() if count.most]
        models = [name for name in models if plan.models[name].setup.provider.asks]
        users = [plan.user] if plan.user is not None and any(one.most for one in self.users.values()) else []
        judges = [model for model in plan.asked if self.judges[model.infer.setup.model.name].send != 0]
        return Unanswered(models, users, judges, self.broken)


def forecast(plan: Plan, workspace: Workspace) -> Forecast:
    """Counts everything; reads the dataset and renders it where that is not cached."""
    run = ForeseenRun(plan, workspace)
    items = run.rows(walk(run).all()["items"]) or 0
    turns = [
        TurnCount(entry.turn, entry.step.setup.model.name, entry.count, entry.is_user)
        for entry in run.asked
        if not entry.is_for_scorer
    ]
    user = [plan.user.setup.model.name] if plan.user is not None else []
    judges = dict.fromkeys(model.infer.setup.model.name for model in plan.asked)
    return Forecast(
        items=items,
        models={name: _sum(turns, name, is_user=False) for name in plan.models},
        judges={name: _asked_of(run, name) for name in judges},
        pairs={pair.name: _pair_state(run, pair) for pair in plan.pairs()},
        users={name: _sum(turns, name, is_user=True) for name in user},
        turns=_by_turn(turns),
        broken=list(run.broken.values()),
    )


def _asked_of(run: ForeseenRun, judge: str) -> RequestCount:
    """Requests of scorers to one model."""
    own = [entry for entry in run.asked if entry.is_for_scorer and entry.step.setup.model.name == judge]
    return sum((entry.count for entry in own), NOTHING)


def _pair_state(run: ForeseenRun, pair: PairPlan) -> str:
    """What a run would do about the pair's numbers: "cached", "to compute", or "depends on" the step whose
    outcome decides it (its rows may come out as they were)."""
    own = (entry for entry in run.submitted if entry.pair is not None and entry.pair.name == pair.name)
    states = (entry.state for entry in own if not isinstance(entry.step.setup, AskSetup))
    return next((state for state in states if state != CACHED), CACHED)


def _sum(turns: Iterable[TurnCount], name: str, is_user: bool) -> RequestCount:
    """The requests of all turns to one model, in one of its parts."""
    own = (turn.count for turn in turns if (turn.model, turn.is_user) == (name, is_user))
    return sum(own, NOTHING)


def _by_turn(turns: Iterable[TurnCount]) -> Sequence[TurnCount]:
    """The turns of all partitions and prompts together, in the order in which they are asked."""
    found: dict[tuple[int, bool, str], TurnCount] = {}
    for turn in turns:
        key = turn.turn, not turn.is_user, turn.model
        found[key] = replace(turn, count=found[key].count + turn.count) if key in found else turn
    return [found[key] for key in sorted(found, key=lambda key: key[:2])]


@dataclass(frozen=True)
class Unanswered:
    """Models that at least one request has no answer of yet, by name; the others that will be asked
    something, or may be: those that speak for users, judges and reward models. ``broken`` says what would
    fail on what was answered, as far as it was looked at."""

    models: list[str]
    users: list[Step[InferSetup]]
    judges: list[AskedModel]
    broken: Sequence[str] = ()

    @property
    def names(self) -> list[str]:
        """Models whose answers are missing, whatever their part in the conversation."""
        return [*self.models, *(step.setup.model.name for step in self.users)]

    def others(self, phase: Phase) -> list[Step[InferSetup]]:
        """Whom a run of that phase asks besides the models that it evaluates."""
        return [*self.users, *(judge.infer for judge in self.judges if phase is not Phase.INFER)]


def unanswered(plan: Plan, workspace: Workspace, phase: Phase) -> Unanswered:
    """Whose endpoints a run of that phase will ask; counts no further than it takes to know."""
    user = [plan.user] if plan.user is not None else []
    judges = [] if phase is Phase.INFER else list(plan.asked)
    if peek(load, plan.load, workspace=workspace) is None and not workspace.open().exists("answers"):
        models = [name for name, step in plan.models.items() if step.setup.provider.asks]
        return Unanswered(models, user, judges)
    run = ForeseenRun(plan, workspace)
    stages = walk(run)
    stages.through("grid")
    lacking: dict[tuple[str, bool], None] = {}
    for entry in run.asked:
        key = entry.step.setup.model.name, entry.is_user
        if key not in lacking and entry.count.most:
            lacking[key] = None
    models = [name for name, is_user in lacking if not is_user]
    users = user if any(is_user for _, is_user in lacking) else []
    if not models and not users and judges:
        stages.through("exchanges")
        judges = [model for model in judges if _asked_of(run, model.infer.setup.model.name).send != 0]
    return Unanswered(models, users, judges, list(run.broken.values()))


def unscored(plan: Plan, workspace: Workspace, lacking: Unanswered, phase: Phase) -> list[str]:
    """Pairs by name whose numbers a run of that phase may have to compute; ``lacking``: whom it asks."""
    if phase is Phase.INFER:
        return []
    if lacking.names or peek(load, plan.load, workspace=workspace) is None:
        return [pair.name for pair in plan.pairs()]
    return forecast(plan, workspace).unscored()
