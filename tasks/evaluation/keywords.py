"""Does a user's function take the keywords it will be called with? Asked before anything runs."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from metrics.errors import ConfigError, nearest

_BY_KEYWORD = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def accepted_keywords(
    where: str, function: Callable[..., Any], given: Sequence[str], params: Mapping[str, Any]
) -> list[str]:
    """Which of ``given`` the function takes; the first of them it must take.

    ``where`` begins the message of the ConfigError that is raised if it does not, if it does not take an
    entry of ``params``, or if it needs an argument that nobody gives.
    """
    try:
        known = inspect.signature(function).parameters
    except (TypeError, ValueError):  # compiled functions may have no signature to look at
        return list(given)
    names = [name for name, parameter in known.items() if parameter.kind in _BY_KEYWORD]
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    for name in params:
        if name not in names and not anything:
            raise ConfigError(f"{where} does not take the argument {name!r}{nearest(name, names)}")
    taken = [name for name in given if anything or name in names]
    if given[0] not in taken:
        raise ConfigError(f"{where} must take {', '.join(given)} by these names; it takes {', '.join(names)}")
    for name in names:
        if known[name].default is inspect.Parameter.empty and name not in (*taken, *params):
            raise ConfigError(f"{where} needs the argument {name!r}; give it under params:")
    return taken
