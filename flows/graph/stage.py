"""How a stage is declared, and what goes through the declared stages.

A stage is a function that submits task runs. Its name is the name of what it gives; its parameters name what
it waits for: the results of stages before it. Its decorator names its tasks, by how their outcome can be
known. What walks the stages is a ``Graph``: the flow submits each task to Prefect, the forecast looks each up
in the store. A task that its stage does not declare is refused by both.
"""

import inspect
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from prefect import Task

from flows.plan.steps import AskedModel, Cell, PairPlan, Plan
from metrics.registry import first_paragraph
from tasks.caching import Workspace
from tasks.infer import infer
from tasks.rows.parts import FailedPart
from tasks.store.keys import Step

Node = Any
"""A task run as a graph knows it: only that graph looks into it."""


@dataclass(frozen=True)
class Stage:
    """One stage: what it gives, what it waits for, and its tasks by how their outcome can be known.

    ``merge`` puts together what it gave for earlier blocks of the items and for the next.
    ``makes`` rows that follow from what is there, such as requests: a forecast makes them in memory.
    ``goes_on``: as these, and also where answers are missing, with the conversations that are known.
    ``asks`` a model; what is asked is counted. ``computes``: whatever else; without a record, only a run can
    tell.
    """

    gives: str
    waits_for: tuple[str, ...]
    submit: Callable[..., Any]
    merge: Callable[[Any, Any], Any] = operator.or_
    makes: tuple[Task[..., Any], ...] = ()
    goes_on: tuple[Task[..., Any], ...] = ()
    asks: tuple[Task[..., Any], ...] = ()
    computes: tuple[Task[..., Any], ...] = ()

    @cached_property
    def tasks(self) -> tuple[Task[..., Any], ...]:
        """All tasks that it submits."""
        return (*self.makes, *self.goes_on, *self.asks, *self.computes)

    @property
    def meaning(self) -> str:
        """The first sentence of its function's docstring."""
        return first_paragraph(self.submit)


def stage(
    makes: Sequence[Task[..., Any]] = (),
    goes_on: Sequence[Task[..., Any]] = (),
    asks: Sequence[Task[..., Any]] = (),
    computes: Sequence[Task[..., Any]] = (),
    merge: Callable[[Any, Any], Any] = operator.or_,
) -> Callable[[Callable[..., Any]], Stage]:
    """Declares the function below it as a stage; see ``Stage``."""

    def declare(submit: Callable[..., Any]) -> Stage:
        _, *waits_for = inspect.signature(submit).parameters  # the first is the graph
        return Stage(
            gives=submit.__name__,
            waits_for=tuple(waits_for),
            submit=submit,
            merge=merge,
            makes=tuple(makes),
            goes_on=tuple(goes_on),
            asks=tuple(asks),
            computes=tuple(computes),
        )

    return declare


class Graph(ABC):
    """What the stages are submitted to, and what they ask about task runs that they submitted."""

    plan: Plan
    workspace: Workspace
    at: Stage | None = None
    """The stage that is submitting."""

    def submit(
        self, task: Task[..., Any], step: Step[Any], *inputs: Any, pair: PairPlan | None = None, **named: Any
    ) -> Node:
        """Submits a step of a stage; ``pair`` is whose numbers it is for alone.

        Raises LookupError for a task that the stage does not declare.
        """
        if self.at is None or task not in self.at.tasks:
            where = "outside a stage" if self.at is None else f"by the stage '{self.at.gives}'"
            raise LookupError(f"the task {task.fn.__name__} is submitted {where}, whose @stage lacks it")
        return self._submit(task, step, *inputs, pair=pair, **named)

    @abstractmethod
    def _submit(
        self, task: Task[..., Any], step: Step[Any], *inputs: Any, pair: PairPlan | None = None, **named: Any
    ) -> Node: ...

    @abstractmethod
    def rows(self, node: Node) -> int | None:
        """How many rows the artifact has that a task run gives; None where nobody knows."""

    @abstractmethod
    def is_cached(self, node: Node) -> bool:
        """Whether the result comes from the store."""

    @abstractmethod
    def replied_earlier(self, replies: Sequence[Node]) -> bool:
        """Whether what models replied to a scorer came from earlier runs: this run got no reply of them."""

    @abstractmethod
    def failure(self, node: Node) -> str | None:
        """Why a task run has no result and never will, in words; None for one that has or may have one."""

    @abstractmethod
    def batches(self, node: Node, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Columns of the artifact that a task run gives; nothing where it has none yet."""

    def infer_models(
        self, cells: Sequence[Cell], requests: Mapping[tuple[str, int], Node]
    ) -> dict[Cell, Node]:
        """Asks the models of all cells."""
        return {cell: self.submit(infer, self.plan.asking(cell), requests[cell.place]) for cell in cells}

    def batch_for_scorers(self, asked: Sequence[tuple[AskedModel, Node]]) -> None:  # noqa: B027
        """Called with all that scorers are about to ask of models, so that it can go in few batches."""

    def infer_for_scorer(self, model: AskedModel, purpose: str, requests: Node) -> Node:
        """Asks a model (a judge, a reward model) what a scorer wants to know of it."""
        return self.submit(infer, model.infer.at(purpose), requests)

    def is_decided(self, looks: Mapping[int, Node]) -> bool:
        """Whether the last look of a gate, if there was one, says that nothing more has to be asked."""
        if not looks:
            return False
        batches = self.batches(looks[max(looks)], ["verdict"])
        verdicts = [verdict for batch in batches for verdict in batch.column("verdict").to_pylist()]
        return bool(verdicts) and None not in verdicts

    def scorers_have_asked(self) -> None:  # noqa: B027 - most graphs have nothing to end
        """Called when nothing more is asked for scorers."""

    def failed_parts(self, cells: Iterable[Cell], nodes: Iterable[Node]) -> list[FailedPart]:
        """The cells whose task run has no result, with the reason."""
        pairs = zip(cells, nodes, strict=True)
        reasons = [(cell, self.failure(node)) for cell, node in pairs]
        return [FailedPart(self.plan.origin(cell), reason) for cell, reason in reasons if reason is not None]


class Walk:
    """The stages of a graph one after the other, as far as is asked for.

    Where a run may stop, those between ``cells`` and ``decision`` are gone through block by block until a
    look of the gate decides; what they gave for all blocks is then what they gave.
    """

    def __init__(self, graph: Graph, stages: Sequence[Stage]) -> None:
        self.graph = graph
        self._left = list(stages)
        self._given: dict[str, Any] = {}

    def through(self, name: str) -> dict[str, Any]:
        """Goes on until ``name`` is given for the last time; returns all that was given so far."""
        while any(entry.gives == name for entry in self._left):
            self._next()
        return dict(self._given)

    def all(self) -> dict[str, Any]:
        """Goes on to the end; returns all that was given."""
        while self._left:
            self._next()
        return dict(self._given)

    def _next(self) -> None:
        if CELLS in self._given and self.graph.plan.stopping is not None and self._decision_is_ahead():
            self._block_by_block()
            return
        entry = self._left.pop(0)
        self._given[entry.gives] = self._submitted(entry, self._given)

    def _decision_is_ahead(self) -> bool:
        return any(entry.gives == DECISION for entry in self._left)

    def _block_by_block(self) -> None:
        stages = []
        while self._decision_is_ahead():
            stages.append(self._left.pop(0))
        for block in _blocks(self._given[CELLS]):
            own = {**self._given, CELLS: block}
            for entry in stages:
                # The gate looks at all that was asked so far, every other stage at the block alone.
                sources = self._given if entry.gives == DECISION else own
                own[entry.gives] = given = self._submitted(entry, sources)
                before = self._given.get(entry.gives)
                self._given[entry.gives] = given if before is None else entry.merge(before, given)
            if self.graph.is_decided(self._given[DECISION]):
                return

    def _submitted(self, entry: Stage, given: Mapping[str, Any]) -> Any:
        self.graph.at = entry
        try:
            return entry.submit(self.graph, **{name: given[name] for name in entry.waits_for})
        finally:
            self.graph.at = None


CELLS, DECISION = "cells", "decision"
"""What is cut into blocks, and what ends one."""


def _blocks(cells: Iterable[Cell]) -> list[list[Cell]]:
    """The cells of each block of items, in order."""
    blocks: dict[int, list[Cell]] = {}
    for cell in cells:
        blocks.setdefault(cell.start, []).append(cell)
    return [blocks[start] for start in sorted(blocks)]
