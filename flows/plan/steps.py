"""The plan of a run: every step that it will submit, decided before anything starts."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

from flows.config.schema import EvalConfig
from scorers.base import ALL_FILTERS
from tasks.arena import RateSetup
from tasks.ask import AskSetup
from tasks.datasets.selection import cut
from tasks.decide import DecideSetup
from tasks.execute import ExecuteSetup
from tasks.infer import InferSetup
from tasks.judge import MethodSetup, MetricSetup
from tasks.load import LoadSetup
from tasks.preflight import Checks
from tasks.reduce import AggregateSetup
from tasks.render import RenderSetup
from tasks.rows.parts import Origin, PairIdentity, PairSetup
from tasks.rows.predictions import FilterSetup
from tasks.store.keys import Step
from tasks.store.thresholds import Threshold
from tasks.turns import TurnSetup

MAX_PARTITIONS = 64
UNCUT_ITEMS = Threshold("items_uncut", 2_000)
"""Items up to which there is one partition."""
PARTITION_ITEMS = Threshold("items_of_a_partition", 12_500)
"""Items of a partition beyond that, at most: 8 partitions of 100,000 items. Of smaller ones Prefect's part of
the work becomes large, of larger ones too few for the cores of a machine."""


@dataclass(frozen=True)
class Cell:
    """One place of the grid: a model, a prompt template, a partition (rows ``start`` to ``stop`` of the
    items).

    ``part`` and ``suffix`` say in run names which partition and which place it is, where there are several;
    ``asked`` is the suffix of a step that is named after the model already.
    """

    model: str
    prompt: str
    start: int
    stop: int
    part: str = ""
    suffix: str = ""
    asked: str = ""

    @property
    def about(self) -> dict[str, str]:
        """The place by the names that results and samples bear."""
        return {"model_name": self.model, "prompt_template": self.prompt}

    @property
    def place(self) -> tuple[str, int]:
        """What is asked: the same of every model."""
        return self.prompt, self.start


@dataclass(frozen=True)
class Matchup:
    """Two models' answers to the same requests, which an arena compares; the models by name in order, so that
    it is the same matchup in whatever order the config has them."""

    first: Cell
    second: Cell
    suffix: str

    @property
    def place(self) -> tuple[str, int]:
        """What both were asked."""
        return self.first.place

    @property
    def names(self) -> tuple[str, str]:
        """Both models."""
        return self.first.model, self.second.model


@dataclass(frozen=True)
class ArenaPlan:
    """The steps of an arena beside its scores: ``games`` reads a matchup's verdicts, ``rate`` makes strengths
    of all games of a prompt. ``baseline`` is the one opponent of all others; None: all play all."""

    games: Step[PairSetup]
    rate: Step[RateSetup]
    baseline: str | None

    def matchups(self, cells: Sequence[Cell]) -> list[Matchup]:
        """Who plays whom at which prompt and partition."""
        prompts = len({cell.prompt for cell in cells})
        by_place: dict[tuple[str, int], list[Cell]] = {}
        for cell in cells:
            by_place.setdefault(cell.place, []).append(cell)
        return [
            Matchup(*pair, f" · {pair[0].model} – {pair[1].model}{_where(pair[0], prompts)}")
            for own in by_place.values()
            for pair in combinations(sorted(own, key=lambda cell: cell.model), 2)
            if self.baseline is None or self.baseline in (pair[0].model, pair[1].model)
        ]

    def scored(self, cells: Sequence[Cell]) -> list[Cell]:
        """The cells that have a win rate: the baseline has none against itself."""
        return [cell for cell in cells if cell.model != self.baseline]


def _where(cell: Cell, prompts: int) -> str:
    return (f" × {cell.prompt}" if prompts > 1 else "") + cell.part


@dataclass(frozen=True)
class OverallPlan:
    """The steps of a pair's numbers over all of the user's facets: as if there were none."""

    reduce: Step[PairSetup]
    aggregate: Step[AggregateSetup]


@dataclass(frozen=True)
class PairPlan:
    """One (filter, metric): the unit of scheduling, caching and retrying."""

    source: str
    """The filter whose predictions are scored; "*" for all of them."""
    identity: PairIdentity
    score: Step[PairSetup]
    reduce: Step[PairSetup]
    aggregate: Step[AggregateSetup]
    execute: Step[ExecuteSetup] | None = None
    """What runs the filter's predictions as programs, if its scores wait for that; one step a filter."""
    asks: str | None = None
    """Name of the set of requests to a model (a judge, a reward model) that it waits for."""
    calibration: Step[PairSetup] | None = None
    """What judges the answers of a calibration that its numbers rest on; the same step for all pairs."""
    arena: ArenaPlan | None = None
    """How models are compared, if its scores wait for that."""
    overall: OverallPlan | None = None
    """What makes one number of a model and prompt where the user's facets hold more apart."""

    @property
    def name(self) -> str:
        """As results name it: "metric,filter"."""
        return f"{self.identity.metric.name},{self.identity.filter}"

    @property
    def prepares(self) -> bool:
        """Whether a program or a question is made of each item and what was answered, to be scored by."""
        runs = self.execute is not None and not self.execute.setup.asking
        return runs or self.asks is not None or self.arena is not None


@dataclass(frozen=True)
class FilterPlan:
    """One filter, and the pairs that score its predictions; ``process`` runs ``process_results`` for all of
    them."""

    name: str
    step: Step[FilterSetup]
    process: Step[PairSetup] | None
    pairs: tuple[PairPlan, ...]


@dataclass(frozen=True)
class AskedModel:
    """A model that a scorer asks, and the sampling parameters that it asks with."""

    infer: Step[InferSetup]
    sampling: str

    def ask(self, score: Step[PairSetup], purpose: str, attempt: int) -> Step[AskSetup]:
        """What a step that scores wants to know of it; ``attempt`` counts from 0."""
        model = self.infer.setup.model.name
        setup = AskSetup(**dict(score.setup), judge=model, sampling=self.sampling, attempt=attempt)
        identity = score.identity | {"judge": model, "sampling": self.sampling, "attempt": attempt}
        return Step(name=f"ask {model}{purpose}", identity=identity, setup=setup)


@dataclass(frozen=True)
class TurnPlan:
    """A turn after the first: what is said before it, by a template or by a model that speaks for the user
    (``ask`` is what that is asked), and how the models answer, sample by sample."""

    number: int
    say: Step[TurnSetup]
    models: Mapping[str, Step[InferSetup]]
    ask: Step[TurnSetup] | None = None
    user: Step[InferSetup] | None = None


@dataclass(frozen=True)
class MethodPlan:
    """An evaluation method: judges every response."""

    name: str
    step: Step[MethodSetup]
    knows_model: bool
    """A user's function may look at the model's name, which then is part of the identity."""

    def of(self, origin: Origin) -> Step[MethodSetup]:
        """The step for the responses of one model to one prompt."""
        identity = self.step.identity | ({"origin": asdict(origin)} if self.knows_model else {})
        setup = self.step.setup.model_copy(update={"origin": origin})
        return self.step.model_copy(update={"identity": identity, "setup": setup})


@dataclass(frozen=True)
class MetricPlan:
    """A metric over the results of evaluation methods."""

    name: str
    identity: PairIdentity
    reduce: Step[MetricSetup]
    aggregate: Step[MetricSetup]
    facets: tuple[str, ...]
    is_users: bool


@dataclass(frozen=True)
class StopPlan:
    """How a run asks that may stop: so many blocks of items, each with a look of its gate at ``pairs``, by
    name, once ``least`` items are asked."""

    blocks: int
    least: int
    decide: Step[DecideSetup]
    pairs: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """All steps of a run."""

    config: EvalConfig
    load: Step[LoadSetup]
    prompts: Mapping[str, Step[RenderSetup]]
    models: Mapping[str, Step[InferSetup]]
    filters: tuple[FilterPlan, ...]
    methods: tuple[MethodPlan, ...] = ()
    metrics: tuple[MetricPlan, ...] = ()
    asked: tuple[AskedModel, ...] = ()
    turns: tuple[TurnPlan, ...] = ()
    stopping: StopPlan | None = None

    @property
    def user(self) -> Step[InferSetup] | None:
        """The model that speaks for the user of conversations, if one does."""
        return next((turn.user for turn in self.turns if turn.user is not None), None)

    def is_multi_turn(self, cell: Cell) -> bool:
        """Whether turns follow the first answers at a place: recorded ones are the last of theirs."""
        return bool(self.turns) and self.models[cell.model].setup.provider.asks

    def origin(self, cell: Cell) -> Origin:
        """What all samples of a cell share, for facets."""
        setup = self.models[cell.model].setup
        metadata = {
            **setup.model.metadata,
            "model_id": setup.model.served_name,
            "prompt_template": cell.prompt,
            "sampling": {**setup.sampling.sent(), "num_samples": setup.sampling.num_samples},
        }
        own = setup.provider.recording
        recording = self.recordings.index(own) if own is not None else None
        return Origin(cell.model, cell.prompt, metadata, recording)

    @property
    def recordings(self) -> tuple[Path, ...]:
        """The files of recorded responses, in the order in which the config names them."""
        named = (step.setup.provider.recording for step in self.models.values())
        return tuple(dict.fromkeys(path for path in named if path is not None))

    def asking(self, cell: Cell) -> Step[InferSetup]:
        """The step that asks a cell's model."""
        return self.models[cell.model].at(cell.asked, **cell.about)

    def once_a_prompt(self, cells: Sequence[Cell]) -> list[Cell]:
        """One cell for each prompt and partition: requests are the same for every model."""
        return list({cell.place: cell for cell in reversed(cells)}.values())[::-1]

    def arenas(self) -> tuple[tuple[PairPlan, ArenaPlan], ...]:
        """Pairs whose scores wait for games, one a filter: its pairs share the games."""
        found = {pair.source: (pair, pair.arena) for pair in reversed(self.pairs()) if pair.arena is not None}
        return tuple(reversed(found.values()))

    def pairs(self) -> tuple[PairPlan, ...]:
        """Every pair, in the order of the config."""
        return tuple(pair for entry in self.filters for pair in entry.pairs)

    def facets(self) -> tuple[str, ...]:
        """The run's facets and those that metrics over evaluation results have besides."""
        own = (facet for metric in self.config.metrics for facet in metric.facets or () if facet != "label")
        return tuple(dict.fromkeys([*self.config.facets, *own]))

    def checks(
        self,
        endpoints: Sequence[str],
        others: Sequence[Step[InferSetup]] = (),
        unscored: Collection[str] = (),
    ) -> Checks:
        """What the preflight tries; ``endpoints`` are the models that have to be asked for something,
        ``others`` those that scorers ask and that speak for users, ``unscored`` the pairs by name whose
        scores are not there yet."""
        asked = [self.models[name].setup for name in endpoints]
        grading = [step.setup for step in others]
        return Checks(
            benchmark=self.load.setup.benchmark,
            filters=tuple(entry.step.setup for entry in self.filters if entry.name != ALL_FILTERS),
            pairs=tuple(pair.score.setup for pair in self.pairs()),
            endpoints=tuple(setup for setup in asked if setup.model.server is None),
            judges=tuple(setup for setup in grading if setup.model.server is None),
            served=tuple(setup for setup in (*asked, *grading) if setup.model.server is not None),
            selection=self.load.setup.selection,
            references=tuple(
                pair.score.setup
                for pair in self.pairs()
                if pair.name in unscored and pair.identity.metric.right_answers is not None
            ),
            prepared=tuple(
                pair.score.setup for pair in self.pairs() if pair.name in unscored and pair.prepares
            ),
            samples=self.config.samples_taken(),
            recordings=tuple(
                dict.fromkeys(
                    recording
                    for step in self.models.values()
                    if unscored and (recording := step.setup.provider.recording) is not None
                )
            ),
            programs=any(pair.execute is not None for pair in self.pairs()),
        )

    def partitions(self, items: int) -> int:
        """How many partitions ``items`` are cut into: one up to 2,000, then as many as keep a partition in
        memory's bounds, 64 at most; the blocks of a run that may stop, or of a task of Inspect.

        A function of the number of items alone: the cuts are in the keys of cached steps, which another
        model, pair or machine must not move. Powers of two, so that a few more items seldom do.
        """
        if self.stopping is not None:
            return len(cut(items, self.stopping.blocks)) - 1
        if self.config.inspect is not None:
            return max(1, min(MAX_PARTITIONS, -(-items // self.config.inspect.block)))
        if items <= UNCUT_ITEMS:
            return 1
        count = 2
        while count < MAX_PARTITIONS and count * PARTITION_ITEMS < items:
            count *= 2
        return count

    def cells(self, items: int) -> list[Cell]:
        """The grid of models, prompts and partitions; a cell's suffix says of its place what is not plain
        anyway."""
        parts = self.partitions(items)
        cuts = [items * part // parts for part in range(parts + 1)]
        return [
            self._cell(
                model, prompt, cuts[part], cuts[part + 1], f" [{part + 1}/{parts}]" if parts > 1 else ""
            )
            for model in self.models
            for prompt in self.prompts
            for part in range(parts)
        ]

    def _cell(self, model: str, prompt: str, start: int, stop: int, part: str) -> Cell:
        prompts = [prompt] if len(self.prompts) > 1 else []
        names = [*([model] if len(self.models) > 1 else []), *prompts]
        place, asked = (f" · {' × '.join(shown)}" if shown else "" for shown in (names, prompts))
        return Cell(model, prompt, start, stop, part, f"{place}{part}", f"{asked}{part}")
