"""A named chain of filter steps: the responses of an item in, its predictions out.

A step is a registered function, a user's function, or a filter class in lm-evaluation-harness's form.
Names, arguments and types are checked when the chain is built.

The names of filter steps, the decorator ``filter_step`` that gives a function its name, and what steps on
text share.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar, get_type_hints

from metrics.aliases import nearest, own_arguments
from metrics.errors import ConfigError, described, named, users_code
from metrics.patterns import bounded
from metrics.registry import Registry, first_paragraph, module_of
from metrics.types import OutputType, Resolve
from scorers.base import FilterError
from scorers.config import FilterConfig, FilterStepConfig

F = TypeVar("F", bound=Callable[..., Any])

ItemResponses = Sequence[Sequence[Any]]
"""Responses, or what earlier steps made of them: one list per item."""
Docs = Sequence[Mapping[str, Any]]
"""The items' rows, beside the responses."""
Keeps = Literal["all", "first", "one"]
"""Which repeats a step keeps: every one, the first k (take_first: 1), or one that stands for all of them."""


@dataclass(frozen=True)
class FilterDefinition:
    """A registered step: its function, which repeats it keeps, and whether it only takes text.

    ``keeps`` is None where nobody can know (a user's function). ``text`` steps cannot work on
    log-likelihoods. ``patterns`` names the arguments that hold regular expressions.
    """

    name: str
    function: Callable[..., Any]
    keeps: Keeps | None = None
    text: bool = True
    source: str = ""
    patterns: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """First paragraph of the function's docstring."""
        return first_paragraph(self.function)


class FilterRegistry(Registry[FilterDefinition]):
    """The steps, with a word on those that lm-evaluation-harness registers and that cannot work."""

    def unknown(self, name: str) -> str:
        """The sentence for a name that is not known."""
        if name == "decontaminate":
            return (
                "filter 'decontaminate' drops every response in lm-evaluation-harness, where nothing uses "
                "it; remove the step (should_decontaminate in the benchmark is recorded)"
            )
        return super().unknown(name)


FILTERS: FilterRegistry = FilterRegistry("filter", "scorers.filters", group="nightjar.filters")


def filter_step(
    name: str | None = None,
    *,
    keeps: Keeps | None = None,
    text: bool = True,
    source: str = "",
    patterns: tuple[str, ...] = (),
) -> Callable[[F], F]:
    """Register ``fn(resps, docs, **arguments)`` as a filter step; the function itself comes back unchanged.

    ``resps`` has one list per item, ``docs`` the items' rows; the result has the same items in the same
    order, each with as many entries or fewer. None stands for "no prediction". The arguments' annotations and
    defaults are what a config is checked against.

    >>> @filter_step("shout", keeps="all")
    ... def shout(resps, docs):
    ...     return [[None if resp is None else resp.upper() for resp in item] for item in resps]
    """

    def register(function: F) -> F:
        entry = FilterDefinition(
            name=name if name is not None else function.__name__,
            function=function,
            keeps=keeps,
            text=text,
            source=source,
            patterns=patterns,
        )
        if not callable(function):
            raise ConfigError(f"filter {entry.name!r}: {function!r} is not callable")
        FILTERS.add(entry.name, entry)
        function.__filter__ = entry  # type: ignore[attr-defined]  # a config that names the function finds it here
        return function

    return register


def each_text(resps: ItemResponses, name: str, function: Callable[[str], Any]) -> list[list[Any]]:
    """``function`` of every text; None (no prediction) stays None. Anything else raises FilterError naming
    ``name``."""
    return [[_apply(resp, name, function) for resp in item] for item in resps]


def _apply(resp: Any, name: str, function: Callable[[str], Any]) -> Any:
    if isinstance(resp, str):
        return function(resp)
    if resp is None:
        return None
    raise FilterError(
        f"filter {name!r} works on text, but an earlier step gave it {type(resp).__name__} {resp!r:.80}; "
        "move it before that step"
    )


def match_text(match: str | Sequence[str]) -> str | None:
    """The text of one ``re.findall`` match: with several groups the first that took part, None if none
    did."""
    if not isinstance(match, str):
        match = next((group for group in match if group), "")
        return match.strip() if match else None
    return match.strip()


@dataclass(frozen=True)
class FilterStep:
    """A step with its arguments bound. ``source`` is the function whose code decides what it does."""

    name: str
    run: Callable[[ItemResponses, Docs], list[list[Any]]]
    source: Callable[..., Any]
    keeps: Keeps | None = None
    text: bool = False
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    patterns: tuple[str, ...] = ()
    """The config's regular expressions that it runs over responses."""

    def bounded(self, responses: Sequence[Any]) -> bool:
        """Whether the step is sure to end soon on these; a user's step is taken at its word."""
        if not self.patterns:
            return True
        texts = [text for text in responses if isinstance(text, str)]
        return all(bounded(pattern, texts) for pattern in self.patterns)

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

    def apply(self, resps: ItemResponses, docs: Docs) -> list[list[Any]]:
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
        """The functions of the steps: what keys hold of them, of users' ones."""
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
    function, arguments = definition.function, own_arguments(definition.name, config.kwargs)
    check_arguments(definition.name, function, arguments)
    if module_of(function).startswith("scorers."):
        check_types(definition.name, function, arguments)
        run: Callable[..., list[list[Any]]] = partial(function, **arguments)
    else:
        run = UserStep(definition.name, function, arguments)
    patterns = tuple(_patterns(definition, arguments))
    return FilterStep(definition.name, run, function, definition.keeps, definition.text, arguments, patterns)


def _patterns(definition: FilterDefinition, kwargs: Mapping[str, Any]) -> Iterator[str]:
    for name in definition.patterns:
        given = kwargs.get(name) or ()
        yield from [given] if isinstance(given, str) else given


def step_alone(config: FilterStepConfig) -> Callable[[tuple[list[Any], Mapping[str, Any]]], list[Any]]:
    """A registered step as a function of one item's responses and row: what a process of its own calls."""

    def no_functions(reference: str) -> Any:
        raise ConfigError(f"filter {reference!r} is no registered step")

    step = _build_step(config, no_functions)
    return lambda given: step.run([given[0]], [given[1]])[0]


def _custom_step(config: FilterStepConfig, resolve: Resolve) -> FilterStep:
    """``custom`` passes further arguments on to its ``filter_fn``."""
    arguments = dict(config.kwargs)
    reference = arguments.pop("filter_fn", None)
    if not isinstance(reference, str) or ":" not in reference:
        raise ConfigError(f"filter 'custom' needs filter_fn: file.py:fn, not {reference!r}")
    function = resolve(reference)
    check_arguments(reference, function, arguments)
    return FilterStep("custom", UserStep(reference, function, arguments), function, kwargs=config.kwargs)


@filter_step("custom", text=False, source="lm-evaluation-harness 0.4.13, lm_eval/filters/custom.py")
def custom(resps: ItemResponses, docs: Docs, filter_fn: Callable[..., Any]) -> list[list[Any]]:
    """The user's function ``filter_fn`` (``file.py:fn``), called with the responses and documents of all
    items."""
    return UserStep("custom", filter_fn)(resps, docs)


@dataclass(frozen=True)
class UserStep:
    """A user's step behind the interface of the registered ones, its result checked for shape.

    ``function`` is ``fn(resps, docs, **kwargs)``, or a class with a method ``apply(resps, docs)`` that is
    constructed once with the arguments.
    """

    name: str
    function: Callable[..., Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_call", self._bound())

    def __call__(self, resps: ItemResponses, docs: Docs) -> list[list[Any]]:
        """The step's predictions; raises FilterError naming the step and the item whose shape is wrong."""
        given = [list(item) for item in resps]  # a copy: the function may write into it
        try:
            with users_code():
                returned = self._call(given, list(docs))  # type: ignore[attr-defined]  # set in __post_init__
                shaped = [_as_list(item) for item in returned]
        except Exception as error:
            raise FilterError(f"filter {self.name!r} raised {described(error)}") from error
        if len(shaped) != len(resps):
            raise FilterError(
                f"filter {self.name!r} returned {len(shaped)} items for {len(resps)}; expected one list per "
                "item"
            )
        for position, (before, after) in enumerate(zip(resps, shaped, strict=True)):
            if len(after) > len(before) or (len(before) and not after):
                raise FilterError(
                    f"filter {self.name!r} returned {len(after)} predictions for the {len(before)} responses "
                    f"of item {position} of the batch; expected at least one and no more than that "
                    "(None: no prediction)"
                )
        return shaped

    def _bound(self) -> Callable[..., Any]:
        if not inspect.isclass(self.function):
            return lambda resps, docs: self.function(resps, docs, **self.kwargs)
        if not callable(getattr(self.function, "apply", None)):
            raise ConfigError(
                f"filter {self.name!r}: the class {self.function.__name__} has no method apply(resps, docs)"
            )
        try:
            with users_code():
                instance: Any = self.function(**self.kwargs)
        except Exception as error:
            raise ConfigError(f"filter {self.name!r} could not be constructed: {named(error)}") from error
        return instance.apply  # type: ignore[no-any-return]


def _as_list(item: Any) -> list[Any]:
    """A class from lm-evaluation-harness may return one prediction bare, or a lazy sequence of them."""
    if isinstance(item, list):
        return item
    if isinstance(item, Iterator):
        return list(item)
    return [item]


DATA = ("resps", "docs")


def check_arguments(name: str, function: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """Raises ConfigError for a keyword that ``function`` does not take, and for one that it needs and
    lacks."""
    target = function.__init__ if inspect.isclass(function) else function
    parameters = [p for p in inspect.signature(target).parameters.values() if p.name not in (*DATA, "self")]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    for key in kwargs:
        if key not in named and not takes_any:
            takes = ", ".join(named) or "none"
            raise ConfigError(
                f"filter {name!r} has no argument {key!r}{nearest(key, named)} (its arguments: {takes})"
            )
    for key, parameter in named.items():
        if parameter.default is parameter.empty and key not in kwargs and _is_required(function, key):
            raise ConfigError(f"filter {name!r} needs the argument {key!r}")


def _is_required(function: Callable[..., Any], key: str) -> bool:
    """The two data parameters may have any name in a user's function: they are the first two without
    default."""
    if inspect.isclass(function):
        return True
    required = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return key not in required[:2]


def check_types(name: str, function: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """Raises ConfigError for a value that does not have its annotation's type, or that the step itself
    refuses.

    Registered steps check their arguments before they look at a response, so running one on nothing is the
    test.
    """
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    hints = get_type_hints(function)
    for key, value in kwargs.items():
        if key not in hints:
            continue
        try:
            TypeAdapter(hints[key], config=ConfigDict(strict=True)).validate_python(value)
        except ValidationError as error:
            problem = error.errors()[0]["msg"]
            raise ConfigError(f"filter {name!r}: argument {key!r}: {problem}, not {value!r}") from None
    try:
        function([], [], **kwargs)
    except Exception as error:
        raise ConfigError(f"filter {name!r}: {error} (arguments: {dict(kwargs)!r})") from error
