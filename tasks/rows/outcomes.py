"""What became of an answer, as it is counted beside every score: one word of OUTCOMES for each response.

The stages filter and evaluate put it beside their rows; reductions count it. Whether a cut-off answer is
wrong or unscored is the benchmark's ``cut_off``, and decided where it is scored; a refused one is scored.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.messages.endings import ending

OUTCOME_COLUMNS = ("status", "response", "tool_calls_json", "finish_reason", "lls")
"""Columns of RESPONSES that the outcome of a response depends on."""
LACKING = frozenset({"cut_off", "refused"})
"""Statuses, and outcomes, of a sample that is there and holds no prediction."""


def outcome(status: str, text: str | None, finish_reason: str | None, is_text: bool = True) -> str:
    """The outcome of a response of this status; what is not text (log-likelihoods, calls) is not empty.

    >>> outcome("ok", " ", "stop"), outcome("ok", "", "tool_use"), outcome("infra_error", None, None)
    ('empty', 'answered', 'failed')
    """
    if status != "ok":
        return status if status in LACKING else "failed"
    is_blank = is_text and not (text or "").strip() and ending(finish_reason) != "call"
    return "empty" if is_blank else "answered"


def outcome_of(response: Mapping[str, Any]) -> str:
    """The outcome of a row of RESPONSES."""
    is_text = response["lls"] is None and response["tool_calls_json"] is None
    return outcome(response["status"], response["response"], response["finish_reason"], is_text)


def outcome_of_all(responses: Sequence[Mapping[str, Any]]) -> str:
    """The outcome of a prediction that was chosen among several responses."""
    outcomes = {outcome_of(response) for response in responses}
    if "cut_off" in outcomes:
        return "cut_off"
    if outcomes <= {"empty", "refused"}:
        return "refused" if "refused" in outcomes else "empty"
    return "answered"
