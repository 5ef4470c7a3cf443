"""Other names under which documents write metrics and arguments of filters: the one table of them.

An alias is looked up where the name itself is, so that results keep the name that the config writes.
"""

from collections.abc import Mapping
from typing import Any, Final

METRIC_ALIASES: Final[Mapping[str, str]] = {
    "f1_score": "token_f1",
    "rouge": "rougeL",
    "rouge_1": "rouge1",
    "rouge_2": "rouge2",
    "rouge_l": "rougeL",
    "rouge_lsum": "rougeLsum",
}
"""Name in a metric list → the metric's own."""

ARGUMENT_ALIASES: Final[Mapping[tuple[str, str], str]] = {
    ("regex", "pattern"): "regex_pattern",
    ("regex", "group"): "group_select",
    ("multi_choice_regex", "pattern"): "regex_pattern",
}
"""Filter and argument → the argument's own name."""


def own_arguments(function: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A filter's arguments under their own names; an alias beside its own name stays, to be refused.

    >>> own_arguments("regex", {"pattern": "a"})
    {'regex_pattern': 'a'}
    """
    named = {key: ARGUMENT_ALIASES.get((function, key), key) for key in given}
    return {key if own in given else own: given[key] for key, own in named.items()}
