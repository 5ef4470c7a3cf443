"""Whether a user's function can be called as it is going to be, before anything runs."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from metrics.errors import ConfigError, nearest


def check_call(
    name: str, function: Callable[..., Any], data: Sequence[str], keywords: Sequence[str] = ()
) -> None:
    """Raises ConfigError where ``function`` takes fewer arguments than it will be given, or not these
    keywords."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return  # a builtin: it cannot be asked
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < len(data) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise ConfigError(f"{name} is called with ({', '.join(data)}), and takes {len(positional)} arguments")
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = [p.name for p in parameters[len(data) :] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for key in keywords:
        if key not in known:
            raise ConfigError(
                f"{name} has no argument {key!r}{nearest(key, known)} (its arguments: "
                f"{', '.join(known) or 'none'})"
            )
