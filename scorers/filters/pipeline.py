"""A named chain of filter steps: responses of an item in, predictions out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from metrics.errors import ConfigError
from metrics.types import OutputType
from scorers.filters.arguments import check_arguments, check_types
from scorers.filters.config import FilterConfig, FilterStepConfig
from scorers.filters.custom import UserStep
from scorers.filters.registry import FILTERS, Docs, FilterDefinition, Keeps, Responses

Resolve = Callable[[str], Callable[..., Any]]
"""Turns ``"file.py:fn"`` into the function; raises ConfigError."""


@dataclass(frozen=True)
class FilterStep:
    """A step with its arguments bound. ``source`` is the function whose code decides what it does."""

    name: str
    run: Callable[[Responses, Docs], list[list[Any]]]
    source: Callable[..., Any]
    keeps: Keeps | None = None
    text: bool = False
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def first(self) -> int:
        """How many repeats a step that keeps the first ones keeps."""
        return int(self.kwargs.get("k", 1))


@dataclass(frozen=True)
class FilterPipeline:
    """Steps applied one after the other. Never changes what it is given; None is "no prediction"
    throughout."""

    name: str
    steps: tuple[FilterStep, ...] = ()

    @classmethod
    def build(
        cls, config: FilterConfig, resolve: Resolve, output_type: OutputType = "generate_until"
    ) -> "FilterPipeline":
        """The pipeline of a config.

        Raises ConfigError for an unknown step or argument (with the nearest known one), an argument of the
        wrong type, a pattern that is not one, and a text step where ``output_type`` has no text.
        """
        steps = tuple(_build_step(step, resolve) for step in config.filter)
        for step in steps:
            if step.text and output_type != "generate_until":
                raise ConfigError(
                    f"filter {config.name!r}: step {step.name!r} works on text, but output_type "
                    f"{output_type} has log-likelihoods; use take_first, noop or a function of your own"
                )
        return cls(config.name, steps)

    def apply(self, resps: Responses, docs: Docs) -> list[list[Any]]:
        """The predictions of each item, as many as its responses or fewer; raises FilterError."""
        predictions = [list(item) for item in resps]
        for step in self.steps:
            predictions = step.run(predictions, docs)
        return predictions

    def keeps(self, n: int) -> int | None:
        """Repeats that are left of ``n``; None if a user's step makes that unknowable.

        Raises ConfigError where a step needs more repeats than there are.
        """
        left: int | None = n
        for step in self.steps:
            if step.keeps == "first":
                if left is not None and left < step.first():
                    raise ConfigError(
                        f"filter {self.name!r}: {step.name} needs {step.first()} repeats and there are "
                        f"{left}; raise num_samples or lower k"
                    )
                left = step.first()
            elif step.keeps == "one":
                left = 1
            elif step.keeps is None and left != 1:
                left = None
        return left

    def code(self) -> tuple[Callable[..., Any], ...]:
        """The functions whose source decides the predictions: the pipeline's fingerprint."""
        return tuple(step.source for step in self.steps)


def _build_step(config: FilterStepConfig, resolve: Resolve) -> FilterStep:
    if ":" in config.function:
        function = resolve(config.function)
        check_arguments(config.function, function, config.kwargs)
        about: FilterDefinition | None = getattr(function, "__filter__", None)
        keeps, text = (about.keeps, about.text) if about else (None, False)
        own = UserStep(config.function, function, config.kwargs)
        return FilterStep(config.function, own, function, keeps, text, config.kwargs)
    if config.function == "custom":
        return _custom_step(config, resolve)
    definition = FILTERS[config.function]
    function = definition.function
    check_arguments(definition.name, function, config.kwargs)
    if function.__module__.startswith("scorers."):
        check_types(definition.name, function, config.kwargs)
        run: Callable[..., list[list[Any]]] = partial(function, **config.kwargs)
    else:
        run = UserStep(definition.name, function, config.kwargs)
    return FilterStep(definition.name, run, function, definition.keeps, definition.text, config.kwargs)


def _custom_step(config: FilterStepConfig, resolve: Resolve) -> FilterStep:
    """``custom`` passes further arguments on to its ``filter_fn``."""
    arguments = dict(config.kwargs)
    reference = arguments.pop("filter_fn", None)
    if not isinstance(reference, str) or ":" not in reference:
        raise ConfigError(f"filter 'custom' needs filter_fn: file.py:fn, not {reference!r}")
    function = resolve(reference)
    check_arguments(reference, function, arguments)
    return FilterStep("custom", UserStep(reference, function, arguments), function, kwargs=config.kwargs)
