"""How an answer ended, by its finish reason in whatever provider's words."""

from collections.abc import Mapping
from typing import Final, Literal

Ending = Literal["whole", "call", "limit", "filtered", "broken"]
"""How an answer ended: by itself, with a call of a tool, at the limit of tokens, by a filter or the model's
own refusal, or because the server broke it off."""
ENDINGS: Final[Mapping[str, Ending]] = {
    # OpenAI's words first, then those of who else is asked by its protocol, or by one of its own.
    **dict.fromkeys(("stop", "end_turn", "stop_sequence", "pause_turn"), "whole"),
    **dict.fromkeys(("eos", "eos_token", "complete", "completed"), "whole"),
    **dict.fromkeys(("malformed_function_call", "malformed_tool_use", "malformed_model_output"), "whole"),
    **dict.fromkeys(("tool_calls", "function_call", "tool_use"), "call"),
    **dict.fromkeys(("length", "max_tokens", "model_length", "model_context_window_exceeded"), "limit"),
    **dict.fromkeys(("content_filter", "content_filtered", "refusal", "sensitive"), "filtered"),
    **dict.fromkeys(("safety", "recitation", "blocklist", "prohibited_content", "spii"), "filtered"),
    **dict.fromkeys(("language", "image_safety", "image_prohibited_content"), "filtered"),
    **dict.fromkeys(("guardrail_intervened",), "filtered"),
    **dict.fromkeys(("error", "abort", "insufficient_system_resource", "network_error"), "broken"),
}
"""Finish reasons in lower case, and what they say."""
OPENAI_WORDS: Final[Mapping[Ending | None, str]] = {"whole": "stop", "limit": "length", "call": "tool_calls"}


def ending(finish: str | None) -> Ending | None:
    """What a finish reason says, in whatever case; None: nothing, or nothing that is known.

    >>> ending("MAX_TOKENS"), ending("content_filter: SPII"), ending("because")
    ('limit', 'filtered', None)
    """
    return ENDINGS.get((finish or "").partition(":")[0].strip().lower())


def is_at_limit(finish: str | None) -> bool:
    """Whether the limit of tokens ended an answer with this finish reason."""
    return ending(finish) == "limit"


def openai_word(finish: str | None) -> str | None:
    """A finish reason in OpenAI's words; those that it has no word for stay as they are.

    >>> openai_word("MAX_TOKENS"), openai_word("end_turn"), openai_word("refusal")
    ('length', 'stop', 'refusal')
    """
    return OPENAI_WORDS.get(ending(finish), finish)
