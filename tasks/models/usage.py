"""What is believed of the fields of a reply's body: token counts, by whichever names servers say them, and
text."""

from collections.abc import Mapping
from typing import Any, Final

IMPLAUSIBLE_COUNT = 1 << 40
"""No reply has so many tokens: such a count is a server's mistake, and sums of them fit no column."""


def usage_of(body: Mapping[str, Any], parts: int) -> list[dict[str, int | None]]:
    """The reply's token counts divided over its answers, so that their sum is what was used."""
    usage = body.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    counts = {
        "prompt_tokens": _count(usage, "prompt_tokens"),
        "completion_tokens": _count(usage, "completion_tokens"),
        "total_tokens": _count(usage, "total_tokens"),
        "cached_tokens": _cached(usage),
        "reasoning_tokens": _count(usage.get("completion_tokens_details"), "reasoning_tokens"),
    }
    counts["completion_tokens"] = _written(counts)
    prompt, cached = counts["prompt_tokens"], counts["cached_tokens"]
    if prompt is not None and cached is not None:
        counts["cached_tokens"] = min(prompt, cached)
    if parts == 1:
        return [counts]
    return [
        {
            name: None if count is None else count // parts + (part < count % parts)
            for name, count in counts.items()
        }
        for part in range(parts)
    ]


def _cached(usage: Mapping[str, Any]) -> int | None:
    """Tokens of the prompt that the server had cached, as OpenAI, DeepSeek and Moonshot say it."""
    details = usage.get("prompt_tokens_details")
    said = (details, "cached_tokens"), (usage, "prompt_cache_hit_tokens"), (usage, "cached_tokens")
    return next((count for place in said if (count := _count(*place)) is not None), None)


def _written(counts: Mapping[str, int | None]) -> int | None:
    """Tokens that the model wrote, its thought among them. Grok and some gateways count the thought beside
    them: then it is in the total alone, or is more than there would be."""
    completion, thought = counts["completion_tokens"], counts["reasoning_tokens"]
    if not thought or completion is None:
        return completion
    prompt, total = counts["prompt_tokens"], counts["total_tokens"]
    if prompt is None or total is None:
        return completion + thought if thought > completion else completion
    is_apart = thought > completion or total == prompt + completion + thought
    return max(completion, total - prompt) if is_apart else completion


def _count(usage: Any, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if type(value) is int and 0 <= value < IMPLAUSIBLE_COUNT else None  # True is no count


def text_or_none(value: Any) -> str | None:
    """``value`` if it is text: servers put anything into a field."""
    return value if isinstance(value, str) else None


COUNTED: Final = ("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "reasoning_tokens")
SUMMED: Final = (*COUNTED, "inference_time")
"""What several answers have together."""
