"""What all text steps share: a function of one text, applied to every response of every item."""

from collections.abc import Callable, Sequence
from typing import Any

from scorers.errors import FilterError
from scorers.filters.registry import Responses


def each_text(resps: Responses, name: str, function: Callable[[str], Any]) -> list[list[Any]]:
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
