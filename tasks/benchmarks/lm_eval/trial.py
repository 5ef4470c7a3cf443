"""Tries a definition without its dataset: imports every function, and runs it on rows made for it.

What a column holds is guessed from its uses (``columns``); where a function raises, the guesses about the
columns that its lines mention are changed one by one, and kept where the run gets further. A definition
that no row could be made for is not wrong by that: the last error says where the trial ended.

Trials can be made in a process that can be killed: what never returns costs itself only. A function may
wait for a network, or be in a library's code that no signal reaches; it may exit the process, or leave
its packages imported by half. The next definition then finds a new process.
"""

import linecache
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from metrics.errors import ConfigError, NightjarError
from metrics.types import ChoiceBatch, Resolve
from scorers.base import Batch
from scorers.choices import ChoiceColumns, choice_batch
from scorers.config import ScoringConfig
from scorers.factory import build_pipelines, build_scorer
from scorers.process_results import ProcessResultsScorer
from tasks.benchmarks.lm_eval.benchmark import Prompter
from tasks.benchmarks.lm_eval.columns import columns_of
from tasks.benchmarks.lm_eval.documents import document_items
from tasks.benchmarks.lm_eval.shapes import CANDIDATES, RowMaker, Shape
from tasks.benchmarks.lm_eval.splits import Splits
from tasks.benchmarks.lm_eval.yaml import decoded, functions_in, runs_programs_itself
from tasks.datasets.item import Rendered
from tasks.sandboxes.killable import ItemTimeout, KillableProcess
from tasks.usercode.evaluate import collecting
from tasks.usercode.load import UserModules, trust_what_is_named, trusting
from tasks.usercode.surroundings import Documents, stand_ins, without_library

if TYPE_CHECKING:
    from scorers.config import ScoringConfig


SECONDS_APART: Final = 90.0
"""CPU time of one import, and of one trial."""
WAITING: Final = 4
"""How many times that may pass by the clock of the wall."""

Asked = tuple[Mapping[str, Any], str, "ScoringConfig | None"]


class Trials(AbstractContextManager["Trials"]):
    """``import_functions`` and ``try_definition``, in a process that starts with the first call."""

    def __init__(self) -> None:
        target = "tasks.benchmarks.lm_eval.trial:run_trial"
        self._process = KillableProcess(target, [trusting()], SECONDS_APART, WAITING, setting=None)

    def __exit__(self, *_: object) -> None:
        self._process.close()

    def import_functions(self, harness: Mapping[str, Any], base_dir: str | Path) -> None:
        """Imports every function that a definition names; raises ConfigError for one that can't be."""
        said = self._process((harness, str(base_dir), None))
        if isinstance(said, ItemTimeout):
            task = harness.get("task")
            raise ConfigError(f"benchmark {task}: its functions can't be imported: {said.reason}")
        if said is not None:
            raise ConfigError(said)

    def try_definition(
        self, harness: Mapping[str, Any], base_dir: str | Path, scoring: "ScoringConfig"
    ) -> "Trial":
        """The trial of a definition on made rows; raises ConfigError for what can't be imported or built.

        A definition without functions runs no code but ours, and is tried here.
        """
        from tasks.benchmarks.lm_eval.shapes import Shape
        from tasks.benchmarks.lm_eval.yaml import decoded, functions_in

        if not any(functions_in(decoded(harness["config"]))):
            return try_definition(harness, base_dir, scoring)
        said = self._process((harness, str(base_dir), scoring))
        if isinstance(said, ItemTimeout):
            self.import_functions(harness, base_dir)  # raises where that is what never returned
            return Trial(False, said.reason, Shape(), {})
        if isinstance(said, str):
            raise ConfigError(said)
        trial: Trial = said
        return trial


def run_trial(trusted: bool) -> "Callable[[Asked], Trial | str | None]":
    """What the process calls: the trial, without ``scoring`` None for an import alone; or, as text, why it
    is refused.

    ``trusted``: what is named is trusted, as by ``--trust``.
    """

    trust_what_is_named(trusted)

    def call(asked: Asked) -> "Trial | str | None":
        harness, base_dir, scoring = asked
        try:
            if scoring is None:
                import_functions(harness, Path(base_dir))
                return None
            return try_definition(harness, base_dir, scoring)
        except NightjarError as error:
            return str(error)

    return call


ROWS: Final = 8
SEED: Final = 1234
RUNS: Final = 400
SECONDS: Final = 3.0
"""How often a definition is tried with other guesses, and for how long (CPU time, so that a loaded machine
does not decide what runs)."""
ENDLESS: Final = 20.0
"""Seconds of CPU time after which one attempt is taken for one without an end."""


OWN_DOCUMENTS: Final = "its documents come from a function of its own (custom_dataset)"
OWN_PROGRAMS: Final = "it runs what a model writes in files of its own (unsafe_code)"


@dataclass(frozen=True)
class Trial:
    """How far a definition came: whether it was run, why not, and the rows that it was run on.

    ``guesses`` are the columns that took another guess than the uses of the column gave.
    """

    ran: bool
    reason: str | None
    shape: Shape
    guesses: Mapping[tuple[str, ...], str]

    def rows(self, count: int, seed: int) -> list[dict[str, Any]]:
        """Rows on which the definition runs, if it does on any."""
        return RowMaker(self.shape, seed, self.guesses).rows(count)


class MadeDataset:
    """Made rows in the place of a definition's dataset: the same kind for every split."""

    def __init__(self, shape: Shape, guesses: Mapping[tuple[str, ...], str], seed: int) -> None:
        self._made = shape, guesses, seed
        self._splits: dict[str, Documents] = {}

    def split(self, name: str) -> Documents:
        """The rows of a split; other splits have others."""
        if name not in self._splits:
            shape, guesses, seed = self._made
            seed += sum(map(ord, name))
            self._splits[name] = Documents.from_list(RowMaker(shape, seed, guesses).rows(ROWS))
        return self._splits[name]

    def holders(self, text: str) -> Iterator[str]:
        """The columns with a value that a text shows."""
        for documents in self._splits.values():
            for row in documents:
                for name, value in row.items():
                    if isinstance(value, str) and len(value) > 2 and (value in text or repr(value) in text):
                        yield name


def import_functions(harness: Mapping[str, Any], base_dir: Path, modules: UserModules | None = None) -> None:
    """Imports every function that a definition names; raises ConfigError for one that can't be."""
    modules = modules or UserModules(own=True)
    for name in sorted(set(functions_in(decoded(harness["config"])))):
        modules.function(name, base_dir)


def try_definition(
    harness: Mapping[str, Any], base_dir: str | Path, scoring: ScoringConfig, seed: int = SEED
) -> Trial:
    """Runs a translated definition on made rows; ``harness`` is what the translation put under that key.

    Raises ConfigError for a function that can't be imported and for a scorer that can't be built.
    """
    modules = UserModules(own=True)
    base_dir = Path(base_dir)
    import_functions(harness, base_dir, modules)
    config: dict[str, Any] = decoded(harness["config"])
    run = _Run(harness, config, base_dir, scoring, modules, seed)
    run.build()
    if config.get("custom_dataset"):
        return Trial(False, OWN_DOCUMENTS, Shape(), {})
    if runs_programs_itself(config, base_dir):
        return Trial(False, OWN_PROGRAMS, Shape(), {})
    with without_library(), collecting():
        return _search(run, columns_of(config, run.resolve))


class _Run:
    """A definition that can be run on rows of one shape after another."""

    def __init__(
        self,
        harness: Mapping[str, Any],
        config: Mapping[str, Any],
        base_dir: Path,
        scoring: ScoringConfig,
        modules: UserModules,
        seed: int,
    ) -> None:
        self.base_dir = base_dir
        self._harness, self._config, self._scoring = harness, config, scoring
        self._modules, self._seed = modules, seed
        self._where = f"benchmark {harness.get('task')}"
        self.stage = 0
        resolve: Resolve = lambda reference: modules.function(reference, base_dir)  # noqa: E731
        self.resolve = resolve

    def build(self) -> None:
        """Builds filters and scorer; raises ConfigError."""
        self._scorer = build_scorer(self._scoring, self.resolve)
        self._pipelines = build_pipelines(self._scoring, self.resolve)

    def on(self, shape: Shape, guesses: Mapping[tuple[str, ...], str]) -> None:
        """Runs everything on rows of the shape; raises what a function raises. ``stage`` says how far it
        came."""
        self.stage = 0
        splits = Splits(self._config, self.base_dir, self._where, self._modules)
        self.made = MadeDataset(shape, guesses, self._seed)
        splits.source = self.made  # type: ignore[assignment]
        with stand_ins():
            docs = splits.evaluated()
            self.stage = 1
            prompter = Prompter(self._harness, self._config, splits, self.base_dir)
            rendered = []
            for one in prompter.rendered(document_items(docs, None, self._where)):
                rendered.append(one)
                self.stage += 1
            self._score(rendered)

    def _score(self, rendered: Sequence[Rendered]) -> None:
        for pipeline in self._pipelines:
            replies = [_replies(one) * int(self._config.get("repeats") or 1) for one in rendered]
            predictions: list[Any] = [None] * len(rendered)
            if rendered[0].kind == "generate":
                kept = pipeline.apply(replies, [dict(one.doc) for one in rendered])
                predictions = [next(iter(own), None) for own in kept]
            batch = _batch(rendered, predictions, [own[0] for own in replies])
            scorer = self._scorer
            metrics = scorer.get_metrics(pipeline.name)
            if isinstance(scorer, ProcessResultsScorer):
                processed = scorer.process(batch)
                for metric in metrics:
                    _aggregated(metric, scorer.column(processed, metric, batch))
                    self.stage += 1
                continue
            for metric in metrics:
                _aggregated(metric, scorer.score(batch, metric))
                self.stage += 1


def _aggregated(metric: Any, scored: Any) -> None:
    scores, rows = scored.scores, np.flatnonzero(scored.scored)
    if not len(rows):
        raise ConfigError(f"metric '{metric.name}' has no value: {next(filter(None, scored.errors), 'none')}")
    statistics = None if scores.statistics is None else np.asarray(scores.statistics)[rows]
    values = None if scores.values is None else [scores.values[row] for row in rows]
    if values is None and statistics is None:
        values = [float(scores.score[row]) for row in rows]
    metric.aggregation.value(statistics, values)


def _replies(one: Rendered) -> list[str]:
    """An answer as a model might give it: the reference, where it is text."""
    texts = [reference for reference in one.references if isinstance(reference, str) and reference]
    return [texts[0] if texts else "The answer is (A)."]


def _batch(rendered: Sequence[Rendered], predictions: list[Any], replies: list[str]) -> Batch:
    return Batch(
        item_ids=[one.item.item_id for one in rendered],
        sample_index=np.zeros(len(rendered), dtype=np.int32),
        scored=np.ones(len(rendered), dtype=np.bool_),
        predictions=predictions,
        references=[list(one.references) for one in rendered],
        docs=[dict(one.doc) for one in rendered],
        responses=replies,
        choices=_choices(rendered) if rendered[0].kind != "generate" else None,
    )


def _choices(rendered: Sequence[Rendered]) -> ChoiceBatch:
    """Log-likelihoods that differ from choice to choice."""
    lls = [[-1.5 - 0.25 * at for at in range(len(one.continuations))] for one in rendered]
    alone = [[-2.5 - 0.5 * at for at in range(len(one.unconditional))] for one in rendered]
    asked = any(one.unconditional for one in rendered)
    columns = ChoiceColumns(
        item_ids=[one.item.item_id for one in rendered],
        scored=np.ones(len(rendered), dtype=np.bool_),
        lls=pa.array(lls, pa.list_(pa.float64())),
        is_greedy=pa.array([[False] * len(own) for own in lls], pa.list_(pa.bool_())),
        gold=pa.array([list(one.gold) for one in rendered], pa.list_(pa.int32())),
        continuations=pa.array([list(one.continuations) for one in rendered], pa.list_(pa.string())),
        choices=pa.array([list(one.choices) for one in rendered], pa.list_(pa.string())),
        unconditional=pa.array([list(one.unconditional) for one in rendered], pa.list_(pa.string()))
        if asked
        else None,
        unconditional_lls=pa.array(alone, pa.list_(pa.float64())) if asked else None,
        unconditional_greedy=pa.array([[False] * len(own) for own in alone]) if asked else None,
    )
    return choice_batch(columns, rolling=rendered[0].kind == "rolling")


def _search(run: _Run, shape: Shape) -> Trial:
    """Tries one guess after the other, and keeps those that get further."""
    guesses: dict[tuple[str, ...], str] = {}
    best, error = _attempt(run, shape, guesses)
    deadline, left = time.process_time() + SECONDS, RUNS
    while error is not None:
        found = _with_missing(shape, error)
        if found is not None and left > 0:
            shape, left = found, left - 1
            best, error = _attempt(run, shape, guesses)
            continue
        reached = error
        for change in _candidates(run, shape, guesses, reached):
            if left <= 0 or time.process_time() > deadline:
                return Trial(False, _described(reached), shape, guesses)
            left -= 1
            changed = {**guesses, **change}
            progress, outcome = _attempt(run, shape, changed)
            if outcome is None or progress > best:
                guesses, best, error = changed, progress, outcome
                break
        else:
            return Trial(False, _described(reached), shape, guesses)
    return Trial(True, None, shape, guesses)


Progress = tuple[int, tuple[int, ...]]


def _attempt(
    run: _Run, shape: Shape, guesses: Mapping[tuple[str, ...], str]
) -> tuple[Progress, BaseException | None]:
    try:
        with _without_endless():
            run.on(shape, guesses)
    except (Exception, SystemExit, EndlessError) as error:
        return (run.stage, tuple(line for _, line in _frames(error, run.base_dir))), error
    return (run.stage + 1, ()), None


class EndlessError(BaseException):
    """A function did not come to an end on the rows that it was given."""

    def __str__(self) -> str:
        return f"not done after {ENDLESS:g} s on made rows"


@contextmanager
def _without_endless() -> Iterator[None]:
    """Raises EndlessError in the block once it has taken ENDLESS seconds of CPU time: some functions shuffle
    until an order differs, which for one choice never happens.

    By a signal, which also ends a pattern that runs away, and which is sent again to code that catches
    everything. Signals reach the main thread alone: elsewhere there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    imported = set(sys.modules)
    before = signal.signal(signal.SIGVTALRM, _end)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, ENDLESS, 1.0)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except EndlessError:
        _forget_half_imported(imported)
        raise
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)  # where the signal came just before it was turned off
        signal.signal(signal.SIGVTALRM, before)


def _end(*_: object) -> None:
    raise EndlessError


def _forget_half_imported(before: Container[str]) -> None:
    """Takes modules away whose package is not there: its import was interrupted after theirs, and would not
    find them in itself the next time."""
    for name in sorted(set(sys.modules)):
        parent = name.rpartition(".")[0]
        if name not in before and parent and parent not in sys.modules:
            del sys.modules[name]


def _frames(error: BaseException, folder: Path) -> list[tuple[TracebackType, int]]:
    """The frames of users' files that an error went through, the outermost first."""
    found: list[tuple[TracebackType, int]] = []
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        own = []
        step = cause.__traceback__
        while step is not None:
            if str(folder.parent) in step.tb_frame.f_code.co_filename:
                own.append((step, step.tb_lineno))
            step = step.tb_next
        found = own or found
        cause = cause.__cause__ or cause.__context__
    return found


def _candidates(
    run: _Run, shape: Shape, guesses: Mapping[tuple[str, ...], str], error: BaseException
) -> Iterator[dict[tuple[str, ...], str]]:
    """Other guesses, those about the columns that the failing lines mention first."""
    held = list(dict.fromkeys(run.made.holders(str(error))))
    mentioned = list(dict.fromkeys([*held, *_mentioned(error, run.base_dir, shape)]))
    names = [name for name in dict.fromkeys([*mentioned, *reversed(shape.fields)]) if name in shape.fields]
    kinds = list(CANDIDATES)
    if re.search(r"invalid literal for int|could not convert string to float", str(error)):
        kinds = ["number text", "index", *kinds]
    for at, name in enumerate(names):
        for kind in kinds:
            if guesses.get((name,)) != kind:
                yield {(name,): kind}
        same = [other for other in names if shape.fields[other].alike == shape.fields[name].alike]
        if len(same) > 1 and at < len(mentioned) and name == next(one for one in names if one in same):
            for kind in kinds:
                yield {(other,): kind for other in same}
    for name in names:
        for path in _inner(shape.fields[name], (name,)):
            for kind in islice(CANDIDATES, 6):
                yield {path: kind}


def _inner(shape: Shape, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, one in shape.fields.items():
        yield (*path, name)
        yield from _inner(one, (*path, name))
    if shape.element is not None:
        yield (*path, "*")
        yield from _inner(shape.element, (*path, "*"))


def _mentioned(error: BaseException, folder: Path, shape: Shape) -> Iterator[str]:
    text = str(error)
    for name in shape.fields:
        if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text):
            yield name
    for step, line in reversed(_frames(error, folder)):
        code = step.tb_frame.f_code
        for number in range(line, code.co_firstlineno - 1, -1):
            source = linecache.getline(code.co_filename, number)
            for name in shape.fields:
                if f'"{name}"' in source or f"'{name}'" in source:
                    yield name


def _with_missing(shape: Shape, error: BaseException) -> Shape | None:
    """The shape with a column that a function looked for in vain."""
    cause: BaseException | None = error
    while cause is not None:
        name = None
        if isinstance(cause, KeyError) and cause.args and isinstance(cause.args[0], str):
            found = re.match(r"column '([^']+)' is not there", cause.args[0])
            name = found[1] if found else cause.args[0]
        elif found := re.search(r"'([^']+)' is undefined", str(cause)):
            name = found[1]
        if name is not None and name not in shape.fields and len(name) < 60:
            changed = deepcopy(shape)
            changed.key(name)
            return changed
        cause = cause.__cause__ or cause.__context__
    return None


def _described(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, NightjarError) else f"{type(error).__name__}: {text}"
