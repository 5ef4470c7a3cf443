"""Steps that are a user's own: a function, or a filter class in lm-evaluation-harness's form."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from metrics.errors import ConfigError, described
from scorers.errors import FilterError
from scorers.filters.registry import Docs, Responses, filter_step


@filter_step("custom", text=False, source="lm-evaluation-harness 0.4.13, lm_eval/filters/custom.py")
def custom(resps: Responses, docs: Docs, filter_fn: Callable[..., Any]) -> list[list[Any]]:
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

    def __call__(self, resps: Responses, docs: Docs) -> list[list[Any]]:
        """The step's predictions; raises FilterError naming the step and the item whose shape is wrong."""
        given = [list(item) for item in resps]  # a copy: the function may write into it
        try:
            items = list(self._call(given, list(docs)))  # type: ignore[attr-defined]  # set in __post_init__
        except Exception as error:
            raise FilterError(f"filter {self.name!r} raised {described(error)}") from error
        if len(items) != len(resps):
            raise FilterError(
                f"filter {self.name!r} returned {len(items)} items for {len(resps)}; one list per item is due"
            )
        shaped = [_as_list(item) for item in items]
        for position, (before, after) in enumerate(zip(resps, shaped, strict=True)):
            if len(after) > len(before) or (len(before) and not after):
                raise FilterError(
                    f"filter {self.name!r} returned {len(after)} predictions for the {len(before)} responses "
                    f"of item {position} of the batch; as many or fewer are due, at least one (None: no "
                    "prediction)"
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
            instance: Any = self.function(**self.kwargs)
        except Exception as error:
            raise ConfigError(f"filter {self.name!r} could not be constructed: {error}") from error
        return instance.apply  # type: ignore[no-any-return]


def _as_list(item: Any) -> list[Any]:
    """A class from lm-evaluation-harness may return one prediction bare, or a lazy sequence of them."""
    if isinstance(item, list):
        return item
    if isinstance(item, Iterator):
        return list(item)
    return [item]
