"""What is right: acceptable answers of a generation, indices of right choices."""

from collections.abc import Sequence
from typing import Any

from metrics.types import IGNORED_TARGET
from tasks.datasets.errors import DataError


def references_of(target: Any, choices: Sequence[Any] | None, many: bool, processed: bool) -> list[Any]:
    """Acceptable answers as texts. With choices the target is an index; ``processed`` ones stay what they
    are.

    >>> references_of(1, ["yes", "no"], many=False, processed=False)
    ['no']
    """
    if processed:
        return list(target) if isinstance(target, list) else [target]
    if choices is not None:
        try:
            return [str(choices[target])]
        except (TypeError, IndexError) as error:
            raise DataError(f"the target {target!r:.80} is no index of the {len(choices)} choices") from error
    if many:
        return [str(answer) for answer in target] if isinstance(target, list) else [str(target)]
    return [str(target)]


def gold_indices(gold: Any, choices: Sequence[str]) -> list[int]:
    """Right choices: an index, a choice's text, or a list of indices. -100 for one that is not there, as in
    the harness."""
    if isinstance(gold, list):
        return [_index(entry, choices) for entry in gold]
    return [_index(gold, choices)]


def _index(gold: Any, choices: Sequence[str]) -> int:
    if isinstance(gold, str):
        return choices.index(gold) if gold in choices else IGNORED_TARGET
    if isinstance(gold, int | float) and gold == int(gold):
        return int(gold) if gold < len(choices) else IGNORED_TARGET
    return IGNORED_TARGET
