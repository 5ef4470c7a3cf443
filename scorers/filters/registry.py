"""The names of filter steps, the decorator ``filter_step`` that gives a function its name, and what steps on
text share.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from metrics.errors import ConfigError
from metrics.registry import Registry
from scorers.base import FilterError

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
        """First line of the function's docstring."""
        return (self.function.__doc__ or "").strip().partition("\n")[0]


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


FILTERS: FilterRegistry = FilterRegistry("filter", "scorers.filters")


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
