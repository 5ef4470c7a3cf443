"""What a run would send and compute, found without running it: for ``--dry-run``, and for the preflight.

Follows the chain of cached records; where a record is missing, items and requests are made in memory.

What the turns of conversations would ask is found as far as what was answered tells. A turn's requests
hold all that was said before. Where the answers are kept, they are made of them as the flow makes them; a
conversation with an answer missing is told by bounds: it goes on where a template speaks, may end where a
tool or a simulated user does.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from prefect import Task

from flows.config.schema import Phase
from flows.plan.steps import ArenaPlan, AskedModel, Cell, Contest, FilterPlan, PairPlan, Plan, TurnPlan
from scorers.base import ALL_FILTERS
from tasks.arena import ask_contest, play, score_games
from tasks.ask import ask, ask_calibration, score_replies
from tasks.benchmarks.open import open_benchmark
from tasks.caching import Workspace, peek
from tasks.execute import execute, execute_asked, process_asked, score_asked, score_executed
from tasks.filter import filter_responses
from tasks.infer import InferSetup, infer, kept_rows, missing_requests
from tasks.load import load
from tasks.render import render
from tasks.rows.items import item_batches, read_items, request_batches
from tasks.rows.parts import PairSetup
from tasks.score import process_results, score, score_across, score_processed
from tasks.store.keys import Answered, Step
from tasks.store.storage import ArtifactRef
from tasks.turns import (
    TRANSCRIPT,
    TurnSetup,
    ask_user,
    next_turn,
    reply_rows,
    reply_turn,
    template_rows,
    transcripts,
    user_rows,
)

Rows = list[pa.RecordBatch]
Requests = ArtifactRef | Rows
Responses = Answered | Rows
"""As the store holds them where a run has made them, else made in memory."""


@dataclass(frozen=True)
class RequestCount:
    """Requests that would be sent and that are answered already.

    ``send`` is what surely would be, None where it takes responses to know; ``more`` may be sent besides, as
    conversations go on.
    """

    send: int | None
    answered: int
    more: int = 0

    def __add__(self, other: "RequestCount") -> "RequestCount":
        known = self.send is not None and other.send is not None
        send = (self.send or 0) + (other.send or 0) if known else None
        return RequestCount(send, self.answered + other.answered, self.more + other.more)

    @property
    def most(self) -> int | None:
        """The most that would be sent; None where it takes responses to know."""
        return None if self.send is None else self.send + self.more

    def as_dict(self) -> dict[str, int | None]:
        """As ``--dry-run --json`` prints it."""
        beyond = {"to_send_at_most": self.most} if self.more else {}
        return {"to_send": self.send, **beyond, "cached": self.answered}


NOTHING = RequestCount(0, 0)


@dataclass(frozen=True)
class TurnCount:
    """Requests of a turn, counted from 1, to the model that answers, or to the one that speaks for the user
    before it."""

    turn: int
    model: str
    count: RequestCount
    is_user: bool = False


@dataclass(frozen=True)
class Followed:
    """The turns after the first, and the responses of the whole where a run has put them together."""

    turns: tuple[TurnCount, ...]
    whole: Answered | None


def follow(plan: Plan, workspace: Workspace, cell: Cell, requests: Requests, answered: Responses) -> Followed:
    """How the conversations at one place go on after the first turn's requests and what is kept of their
    answers; sends nothing."""
    return _Conversations(plan, workspace, cell).followed(requests, answered)


@dataclass
class _Conversations:
    plan: Plan
    workspace: Workspace
    cell: Cell
    sure: int = 0
    """Requests of the turn to come that are surely made and that no answer is kept of: those of conversations
    whose last answer is missing."""
    unknown: int = 0
    """Conversations with an answer missing: what is said in them from there on nobody knows."""

    def followed(self, requests: Requests, answered: Responses) -> Followed:
        turns: list[TurnCount] = []
        answers, replies = [answered], []
        self.sure = self.unknown = self._unanswered(answered)
        for turn in self.plan.turns:
            name = self.plan.models[self.cell.model].setup.model.name
            if turn.ask is not None and turn.user is not None:
                asked = self._made(ask_user, user_rows, turn.ask, requests, answers[-1])
                count, reply = self._asked(turn.user, asked)
                turns.append(TurnCount(turn.number, turn.user.setup.model.name, count, is_user=True))
                replies.append(reply)
                self.sure = 0  # the user may say the end
                requests = self._made(reply_turn, reply_rows, turn.say, requests, answers[-1], reply)
            else:
                self.sure = 0 if _may_end(turn) else self.sure
                requests = self._made(next_turn, template_rows, turn.say, requests, answers[-1])
            count, answered = self._asked(turn.models[self.cell.model], requests)
            turns.append(TurnCount(turn.number, name, count))
            answers.append(answered)
        return Followed(tuple(turns), self._whole(answers, replies))

    def _made(
        self,
        task: Task[..., ArtifactRef],
        make: Callable[..., Iterator[pa.RecordBatch]],
        step: Step[TurnSetup],
        requests: Requests,
        *given: Responses,
    ) -> Requests:
        """A turn's requests: the artifact where a run has made it, else rows."""
        if isinstance(requests, ArtifactRef) and all(isinstance(one, Answered) for one in given):
            kept = peek(task, step, requests, *given, workspace=self.workspace)
            if kept is not None:
                return kept
        return list(make(step.setup, *map(self._read, (requests, *given))))

    def _asked(self, step: Step[InferSetup], requests: Requests) -> tuple[RequestCount, Responses]:
        """What asking a turn's requests comes to, with what is unknown of others; and the answers."""
        sure, unknown = self.sure, self.unknown
        if isinstance(requests, ArtifactRef):
            kept = peek(infer, step, requests, workspace=self.workspace)
            if kept is not None:
                return RequestCount(sure, requests.rows, unknown - sure), kept
        missing, rows = kept_rows(step, self._read(requests), self.workspace)
        total = sum(batch.num_rows for batch in rows)
        self.sure += missing
        self.unknown += self._unanswered(rows)
        return RequestCount(missing + sure, total - missing, unknown - sure), rows

    def _unanswered(self, responses: Responses) -> int:
        """Conversations whose answer is missing; none where a run has asked for all."""
        if isinstance(responses, Answered):
            return 0
        return sum(batch.column("status").to_pylist().count("infra_error") for batch in responses)

    def _read(self, rows: Requests | Responses) -> Iterable[pa.RecordBatch]:
        if isinstance(rows, list):
            return rows
        ref = rows.responses if isinstance(rows, Answered) else rows
        batches: Iterable[pa.RecordBatch] = self.workspace.open().batches(ref)
        return batches

    def _whole(self, answers: list[Any], replies: list[Any]) -> Answered | None:
        if not all(isinstance(one, Answered) for one in (*answers, *replies)):
            return None
        return peek(transcripts, TRANSCRIPT, answers, replies, workspace=self.workspace)


def _may_end(turn: TurnPlan) -> bool:
    """Whether nothing may be said in a turn: an answer without calls has no results of tools, and a template
    of fields or conditions alone may come out empty."""
    written = turn.say.setup.template
    return turn.say.setup.role == "tool" or "{%" in written or not _FIELDS.sub("", written).strip()


_FIELDS: Final = re.compile(r"\{\{.*?\}\}|\{#.*?#\}", re.DOTALL)


CACHED, TO_COMPUTE = "cached", "to compute"
AskedPartition = tuple[ArtifactRef, ArtifactRef, Answered]
"""Requests, predictions and answers at one place of the grid."""
AskedContest = tuple[ArtifactRef, tuple[ArtifactRef, Answered], tuple[ArtifactRef, Answered]]
"""Requests, and the predictions and answers of both models."""


@dataclass
class Dialogue:
    """A set of requests as far as the store knows it: what was asked and replied, and what is still to be
    sent, by model."""

    requests: list[ArtifactRef] = field(default_factory=list)
    replies: list[Answered] = field(default_factory=list)
    send: dict[str, int] = field(default_factory=dict)
    answered: dict[str, int] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether nothing is to be sent."""
        return not any(self.send.values())


def about_responses(plan: Plan, workspace: Workspace, pair: PairPlan, place: AskedPartition) -> Dialogue:
    """What the pair's set of requests about one place comes to."""
    return _Following(plan, workspace, ask, pair.score, place).dialogue()


def about_contest(plan: Plan, workspace: Workspace, arena: ArenaPlan, place: AskedContest) -> Dialogue:
    """What judges are asked about two models' answers."""
    return _Following(plan, workspace, ask_contest, arena.play, place).dialogue()


def about_calibration(plan: Plan, workspace: Workspace) -> Dialogue | None:
    """What a judge would still be asked about the answers of its calibration; None where there is none."""
    score = next((pair.calibration for pair in plan.pairs() if pair.calibration is not None), None)
    return None if score is None else _Following(plan, workspace, ask_calibration, score, ()).dialogue()


@dataclass(frozen=True)
class _Following:
    plan: Plan
    workspace: Workspace
    task: Task[..., ArtifactRef]
    score: Step[PairSetup]
    inputs: tuple[Any, ...]

    def dialogue(self) -> Dialogue:
        found = Dialogue()
        attempt = 0
        while self._attempt(found, attempt):
            attempt += 1
        return found

    def _attempt(self, found: Dialogue, attempt: int) -> bool:
        """Adds an attempt; False where the dialogue ends with it."""
        given = *self.inputs, list(found.requests), list(found.replies)
        kept = [self._kept(model, attempt, given) for model in self.plan.asked]
        if attempt and all(ref is not None and not ref.rows for ref, _ in kept):
            return False  # nothing was unreadable
        for model, (ref, reply) in zip(self.plan.asked, kept, strict=True):
            self._count(found, model, reply, self._rows(model, attempt, given, ref))
        refs, replies = zip(*kept, strict=True)
        if None in replies:
            return False  # as far as a run goes: what it asks now it reads again only in the next
        found.requests += refs
        found.replies += replies
        return True

    def _kept(
        self, model: AskedModel, attempt: int, given: Sequence[Any]
    ) -> tuple[ArtifactRef | None, Answered | None]:
        step = model.ask(self.score, "", attempt)
        ref = peek(self.task, step, *given, workspace=self.workspace)
        return ref, None if ref is None else peek(infer, model.infer, ref, workspace=self.workspace)

    def _rows(
        self, model: AskedModel, attempt: int, given: Sequence[Any], ref: ArtifactRef | None
    ) -> Iterable[pa.RecordBatch]:
        if ref is not None:
            return self.workspace.open().batches(ref)
        rows: Iterator[pa.RecordBatch] = inspect.unwrap(self.task.fn)(
            model.ask(self.score, "", attempt), *given, workspace=self.workspace
        )
        return rows

    def _count(
        self, found: Dialogue, model: AskedModel, reply: Answered | None, rows: Iterable[pa.RecordBatch]
    ) -> None:
        name = model.infer.setup.model.name
        if reply is not None:
            missing, total = 0, int(reply.accounts.tally["requests"])
        else:
            missing, total = missing_requests(model.infer, rows, self.workspace)
        found.send[name] = found.send.get(name, 0) + missing
        found.answered[name] = found.answered.get(name, 0) + total - missing


@dataclass
class Kept:
    """What the store holds of a plan, from the responses on."""

    plan: Plan
    workspace: Workspace
    cells: list[Cell]
    answered: dict[Cell, tuple[ArtifactRef, Answered]] = field(default_factory=dict)
    _dialogues: dict[tuple[Cell | Contest, str, str], Dialogue | None] = field(default_factory=dict)

    def judges(self) -> dict[str, RequestCount]:
        """Requests of every model that scorers ask."""
        pairs = [pair for pair in self.plan.pairs() if pair.asks is not None]
        dialogues = [about_calibration(self.plan, self.workspace)] if pairs and self._calibrates() else []
        for pair in pairs:
            for cell in self.cells if pair.arena is None else ():
                self._dialogue(pair, cell)
        for pair, arena in self.plan.arenas():
            for contest in arena.contests(self.cells):
                self._contest_dialogue(pair, arena, contest)
        dialogues += self._dialogues.values()
        names = dict.fromkeys(model.infer.setup.model.name for model in self.plan.asked)
        return {name: _counted(name, dialogues) for name in names}

    def state(self, pair: PairPlan) -> str:
        """What a run would do about the pair's scores: "cached" for every cell, "to compute", or "depends
        on" the step whose outcome decides it (its rows may come out as they were)."""
        cells = self.cells if pair.arena is None else pair.arena.scored(self.cells)
        states = [self._state(pair, cell) for cell in cells]
        return next((state for state in states if state != CACHED), CACHED)

    def _calibrates(self) -> bool:
        return any(pair.calibration is not None for pair in self.plan.pairs())

    def _state(self, pair: PairPlan, cell: Cell) -> str:
        if cell not in self.answered:
            return f"depends on {self.plan.models[cell.model].name}"
        if pair.source == ALL_FILTERS:
            return self._state_across(pair, cell)
        place = self._place(pair, cell)
        if place is None:
            return f"depends on {self._filter(pair.source).step.name}"
        if pair.arena is not None:
            return self._state_of_games(pair, pair.arena, cell, place)
        if pair.asks is not None:
            asked = self._dialogue(pair, cell)
            if asked is None or not asked.over:
                return self._depends_on_judges()
            replied = asked.requests, asked.replies
            return _said(peek(score_replies, pair.score, *place, *replied, workspace=self.workspace))
        given: tuple[Any, ...] = place
        asks = pair.execute is not None and bool(pair.execute.setup.asking)
        if pair.execute is not None:
            task = execute_asked if asks else execute
            executed = peek(task, pair.execute, *place, workspace=self.workspace)
            if executed is None:
                return f"depends on {pair.execute.name}"
            given = *place, executed
        process = self._filter(pair.source).process
        if process is None:
            told = score_asked if asks else score if pair.execute is None else score_executed
            return _said(peek(told, pair.score, *given, workspace=self.workspace))
        processed = peek(
            process_asked if asks else process_results, process, *given, workspace=self.workspace
        )
        if processed is None:
            return f"depends on {process.name}"
        return _said(peek(score_processed, pair.score, *place, processed, workspace=self.workspace))

    def _depends_on_judges(self) -> str:
        return f"depends on what {', '.join(model.infer.name for model in self.plan.asked)} gives"

    def _state_of_games(self, pair: PairPlan, arena: ArenaPlan, cell: Cell, place: AskedPartition) -> str:
        games, opponents = [], []
        for contest in arena.contests(self.cells):
            if cell not in (contest.first, contest.second):
                continue
            both, asked = self._contest_place(pair, contest), self._contest_dialogue(pair, arena, contest)
            if both is None or asked is None or not asked.over:
                return self._depends_on_judges()
            kept = peek(play, arena.play, *both, asked.requests, asked.replies, workspace=self.workspace)
            if kept is None:
                return f"depends on {arena.play.name}{contest.suffix}"
            games.append(kept)
            first, second = contest.names
            opponents.append((second, True) if contest.first == cell else (first, False))
        return _said(peek(score_games, pair.score, *place, games, opponents, workspace=self.workspace))

    def _state_across(self, pair: PairPlan, cell: Cell) -> str:
        asked, answered = self.answered[cell]
        predictions = {}
        for entry in self.plan.filters:
            if entry.name != ALL_FILTERS:
                found = peek(filter_responses, entry.step, asked, answered, workspace=self.workspace)
                if found is None:
                    return f"depends on {entry.step.name}"
                predictions[entry.name] = found
        return _said(peek(score_across, pair.score, asked, predictions, answered, workspace=self.workspace))

    def _filter(self, name: str) -> FilterPlan:
        return next(entry for entry in self.plan.filters if entry.name == name)

    def _place(self, pair: PairPlan, cell: Cell) -> AskedPartition | None:
        if cell not in self.answered:
            return None
        asked, answered = self.answered[cell]
        step = self._filter(pair.source).step
        predicted = peek(filter_responses, step, asked, answered, workspace=self.workspace)
        return None if predicted is None else (asked, predicted, answered)

    def _dialogue(self, pair: PairPlan, cell: Cell) -> Dialogue | None:
        """What is asked about a cell for the pair; None where its responses or predictions are not there."""
        key = cell, pair.source, str(pair.asks)
        if key not in self._dialogues:
            place = self._place(pair, cell)
            self._dialogues[key] = (
                None if place is None else about_responses(self.plan, self.workspace, pair, place)
            )
        return self._dialogues[key]

    def _contest_place(self, pair: PairPlan, contest: Contest) -> AskedContest | None:
        first, second = (self._place(pair, cell) for cell in (contest.first, contest.second))
        return None if first is None or second is None else (first[0], first[1:], second[1:])

    def _contest_dialogue(self, pair: PairPlan, arena: ArenaPlan, contest: Contest) -> Dialogue | None:
        """What is asked about a contest; None where an answer or prediction of either model is not there."""
        key = contest, pair.source, str(pair.asks)
        if key not in self._dialogues:
            place = self._contest_place(pair, contest)
            self._dialogues[key] = (
                None if place is None else about_contest(self.plan, self.workspace, arena, place)
            )
        return self._dialogues[key]


def _said(kept: ArtifactRef | None) -> str:
    return CACHED if kept is not None else TO_COMPUTE


def _counted(name: str, dialogues: Iterable[Dialogue | None]) -> RequestCount:
    known = [dialogue for dialogue in dialogues if dialogue is not None]
    send = sum(dialogue.send.get(name, 0) for dialogue in known)
    is_whole = all(dialogue is not None for dialogue in dialogues)
    return RequestCount(send if is_whole else None, sum(dialogue.answered.get(name, 0) for dialogue in known))


@dataclass(frozen=True)
class Forecast:
    """Requests by model, by judge and by model that speaks for users; of models and users also turn by turn,
    in order. Pairs by name, and what a run would do about them."""

    items: int
    models: Mapping[str, RequestCount]
    judges: Mapping[str, RequestCount]
    pairs: Mapping[str, str]
    users: Mapping[str, RequestCount] = field(default_factory=dict)
    turns: Sequence[TurnCount] = ()

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

    def unanswered(self, plan: "Plan") -> "Unanswered":
        """Whose endpoints the run would ask."""
        models = [name for name, count in self.models.items() if count.most]
        models = [name for name in models if plan.models[name].setup.model.type != "replay"]
        users = [plan.user] if plan.user is not None and any(one.most for one in self.users.values()) else []
        judges = [model for model in plan.asked if self.judges[model.infer.setup.model.name].send != 0]
        return Unanswered(models, users, judges)


def forecast(plan: Plan, workspace: Workspace) -> Forecast:
    """Counts everything; reads the dataset and renders it where that is not cached."""
    items = peek(load, plan.load, workspace=workspace)
    count = items.rows if items is not None else sum(batch.num_rows for batch in _items(plan))
    kept = Kept(plan, workspace, plan.cells(count))
    turns = [turn for cell in kept.cells for turn in _cell(plan, workspace, items, cell, kept.answered)]
    user = [plan.user.setup.model.name] if plan.user is not None else []
    return Forecast(
        items=count,
        models={name: _sum(turns, name, is_user=False) for name in plan.models},
        judges=kept.judges(),
        pairs={pair.name: kept.state(pair) for pair in plan.pairs()},
        users={name: _sum(turns, name, is_user=True) for name in user},
        turns=_by_turn(turns),
    )


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
    something, or may be: those that speak for users, judges and reward models."""

    models: list[str]
    users: list[Step[InferSetup]]
    judges: list[AskedModel]

    @property
    def names(self) -> list[str]:
        """Models whose answers are missing, whatever their part in the conversation."""
        return [*self.models, *(step.setup.model.name for step in self.users)]

    def others(self, phase: Phase) -> list[Step[InferSetup]]:
        """Whom a run of that phase asks besides the models that it evaluates."""
        return [*self.users, *(judge.infer for judge in self.judges if phase is not Phase.INFER)]


def unanswered(plan: Plan, workspace: Workspace, phase: Phase) -> Unanswered:
    """Whose endpoints a run of that phase will ask."""
    items = peek(load, plan.load, workspace=workspace)
    models, users = _unanswered_models(plan, workspace, items)
    if phase is Phase.INFER or not plan.asked:
        return Unanswered(models, users, [])
    if models or users or items is None:
        return Unanswered(models, users, list(plan.asked))
    kept = Kept(plan, workspace, plan.cells(items.rows))
    for cell in kept.cells:
        _cell(plan, workspace, items, cell, kept.answered)
    counts = kept.judges()
    judges = [model for model in plan.asked if counts[model.infer.setup.model.name].send != 0]
    return Unanswered(models, [], judges)


def _unanswered_models(
    plan: Plan, workspace: Workspace, items: ArtifactRef | None
) -> tuple[list[str], list[Step[InferSetup]]]:
    user = [plan.user] if plan.user is not None else []
    if items is None and not _could_be_answered(plan, workspace):
        return [name for name, step in plan.models.items() if step.setup.model.type != "replay"], user
    count = items.rows if items is not None else sum(batch.num_rows for batch in _items(plan))
    found: dict[tuple[str, bool], None] = {}
    for cell in plan.cells(count):
        if (cell.model, False) not in found:
            turns = _cell(plan, workspace, items, cell, {})
            found |= {(turn.model, turn.is_user): None for turn in turns if turn.count.most}
    return [name for name, is_user in found if not is_user], user if any(part for _, part in found) else []


def _could_be_answered(plan: Plan, workspace: Workspace) -> bool:
    store = workspace.open()
    return bool(store.fs.exists(store.path("answers")))


def _cell(
    plan: Plan,
    workspace: Workspace,
    items: ArtifactRef | None,
    cell: Cell,
    known: dict[Cell, tuple[ArtifactRef, Answered]],
) -> list[TurnCount]:
    """The requests of a cell, turn by turn; its artifacts go to ``known`` if it has them."""
    step = plan.models[cell.model]
    asked = None
    if items is not None:
        asked = peek(render, plan.prompts[cell.prompt], items, cell.start, cell.stop, workspace=workspace)
    answered = peek(infer, step, asked, workspace=workspace) if asked is not None else None
    if asked is not None and answered is not None:
        count = RequestCount(0, int(answered.accounts.tally["requests"]))
        if not plan.converses(cell):
            known[cell] = asked, answered
            return [TurnCount(1, cell.model, count)]
        followed = follow(plan, workspace, cell, asked, answered)
        if followed.whole is not None:
            known[cell] = asked, followed.whole
        return [TurnCount(1, cell.model, count), *followed.turns]
    requests = _requests(plan, workspace, items, asked, cell)
    if not plan.converses(cell):
        missing, total = missing_requests(step, requests, workspace)
        return [TurnCount(1, cell.model, RequestCount(missing, total - missing))]
    made = list(requests)
    missing, rows = kept_rows(step, made, workspace)
    count = RequestCount(missing, sum(batch.num_rows for batch in rows) - missing)
    return [TurnCount(1, cell.model, count), *follow(plan, workspace, cell, made, rows).turns]


def _requests(
    plan: Plan, workspace: Workspace, items: ArtifactRef | None, asked: ArtifactRef | None, cell: Cell
) -> Iterable[pa.RecordBatch]:
    if asked is not None:
        return workspace.open().batches(asked)
    if items is not None:
        rows = read_items(workspace.open().batches(items, rows=(cell.start, cell.stop)))
    else:
        rows = islice(read_items(_items(plan)), cell.start, cell.stop)
    benchmark = open_benchmark(plan.load.setup.benchmark)
    return request_batches(cell.prompt, benchmark.render(cell.prompt, rows))


def _items(plan: Plan) -> Iterator[pa.RecordBatch]:
    setup = plan.load.setup
    return item_batches(setup.selection.of(open_benchmark(setup.benchmark).items()))
