"""A filter pipeline over the responses of items, where a pattern may run away: what takes too much is given
up.

A step whose patterns are sure to end soon on the texts at hand runs here, any other in a process that can be
killed. A response is given up alone where every step gives each its own prediction, else the item is.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from scorers.config import FilterConfig
from scorers.filters import FilterPipeline
from scorers.filters.pipeline import UserStep
from tasks.killable.process import GaveUp, KillableProcess

Given = list[Any] | GaveUp


class LimitedPipeline:
    """A pipeline and its config; an item may take ``seconds`` of CPU time in a step. A context manager: its
    processes end with the block."""

    def __init__(self, pipeline: FilterPipeline, config: FilterConfig, seconds: float) -> None:
        self.pipeline = pipeline
        self._processes = [
            KillableProcess("scorers.filters.pipeline:step_alone", [step], seconds) for step in config.filter
        ]
        self._each_alone = all(
            step.keeps == "all" and not isinstance(step.run, UserStep) for step in pipeline.steps
        )

    def __enter__(self) -> "LimitedPipeline":
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.close()

    def apply(
        self, items: Sequence[Sequence[Any]], docs: Sequence[Mapping[str, Any]]
    ) -> list[list[Any] | GaveUp]:
        """The predictions of each item, GaveUp among them or in their place; raises FilterError."""
        if not any(step.patterns for step in self.pipeline.steps):
            return list(self.pipeline.apply(items, docs))
        if not self._each_alone:
            return self._steps([list(item) for item in items], docs)
        alone: list[Given] = [[response] for item in items for response in item]
        own_docs = [doc for item, doc in zip(items, docs, strict=True) for _ in item]
        found = iter(self._steps(alone, own_docs))
        return [
            [given if isinstance(given := next(found), GaveUp) else given[0] for _ in item] for item in items
        ]

    def _steps(self, items: Iterable[Given], docs: Sequence[Mapping[str, Any]]) -> list[Given]:
        now: list[Given] = list(items)
        for step, process in zip(self.pipeline.steps, self._processes, strict=True):
            left = [(place, item) for place, item in enumerate(now) if not isinstance(item, GaveUp)]
            calm = {place: item for place, item in left if step.bounded(item)}
            doubtful = {place: item for place, item in left if place not in calm}
            done = step.run(list(calm.values()), [docs[place] for place in calm])
            late = process.map([(item, docs[place]) for place, item in doubtful.items()])
            for place, given in [*zip(calm, done, strict=True), *zip(doubtful, late, strict=True)]:
                now[place] = given
        return now
