"""Checks a step's arguments against its function's signature, before anything runs."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from metrics.errors import ConfigError, nearest

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
        if parameter.default is parameter.empty and key not in kwargs and _needed(function, key):
            raise ConfigError(f"filter {name!r} needs the argument {key!r}")


def _needed(function: Callable[..., Any], key: str) -> bool:
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
