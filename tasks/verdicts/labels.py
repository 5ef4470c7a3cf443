"""What an evaluation method says about one response, read from what the user's function returned."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
import pyarrow as pa

from metrics.json_values import with_leaves
from metrics.types import Floats
from tasks.rows.parts import BatchSource
from tasks.store.keys import canonical_json
from tasks.store.schemas import FLOATS, STATISTICS

if TYPE_CHECKING:
    from metrics.aggregation import Aggregation


NO_TRUTH: Final = "the item has no ground truth to compare"
"""Why a response is unscored that no method could judge."""

_OUTCOME = ("passed", "score", "custom_fields", "detailed_results", "details")
_ENTRY = ("label", "result", "name", "description")
_RETURN = ("labels", "custom_fields")


@dataclass(frozen=True)
class Verdict:
    """One label of one response.

    ``label`` is None where the method raised, so that nobody knows what it would have been called.
    ``details`` is the JSON text of an object with ``detailed_results`` (the label's own) and
    ``custom_fields`` (the method's). With ``error`` the response is unscored under this label.
    """

    label: str | None
    passed: bool | None = None
    score: float | None = None
    details: str | None = None
    error: str | None = None


def read_verdicts(returned: Any, default_label: str) -> list[Verdict]:
    """The labels of one return.

    ``{"labels": [{"label": {"name": …, "description": …}, "result": {…}}, …], "custom_fields": {…}}``, one
    such label alone, a list of labels, a result alone, a bool, or a number (which passes above 0). A label
    may be its name. Without a name the label is ``default_label``. Raises ValueError saying what is wrong.

    >>> read_verdicts({"label": "polite", "result": {"passed": True}}, "method")
    [Verdict(label='polite', passed=True, score=1.0, details=None, error=None)]
    >>> read_verdicts(0.25, "method")
    [Verdict(label='method', passed=True, score=0.25, details=None, error=None)]
    """
    plain = _plain(returned)
    if isinstance(plain, (bool, int, float)):
        score = _score(plain, default_label)
        return [Verdict(default_label, passed=score is not None and score > 0, score=score)]
    entries, custom = _entries(returned)
    verdicts = [_verdict(entry, default_label, custom) for entry in entries]
    labels = [verdict.label for verdict in verdicts]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise ValueError(f"returned the label {twice!r} twice for one response")
    return verdicts


def _entries(returned: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The labels, and what the method says of the response as a whole."""
    custom: Mapping[str, Any] = {}
    held = returned
    if isinstance(returned, Mapping) and "labels" in returned:
        held, beside = returned["labels"], {k: v for k, v in returned.items() if k not in _RETURN}
        custom = _joined(beside, _custom(returned, "the method"), "custom_fields")
    elif isinstance(returned, Mapping) and "result" in returned:
        held, custom = (
            {k: v for k, v in returned.items() if k != "custom_fields"},
            _custom(returned, "the method"),
        )
    entries = [held] if isinstance(held, Mapping) else held
    if not isinstance(entries, (list, tuple)) or not entries:
        raise ValueError(
            'expected {"label": …, "result": {"passed": …, "score": …}}, a list of those under "labels", '
            f"true or false, or a number, not {_shown(returned)}"
        )
    return entries, custom


def _verdict(entry: Any, default_label: str, custom: Mapping[str, Any]) -> Verdict:
    if not isinstance(entry, Mapping):
        raise ValueError(f'expected {{"label": …, "result": {{…}}}}, not {_shown(entry)}')
    label, named = _label(entry, default_label)
    result = entry["result"] if "result" in entry else {k: v for k, v in entry.items() if k not in _ENTRY}
    if not isinstance(result, Mapping):
        raise ValueError(f"the result of label {label!r} must be a mapping, not {_shown(result)}")
    if "result" in entry:
        beside = {key: value for key, value in entry.items() if key not in _ENTRY}
        named = _joined(named, beside, "beside_result")
    passed, score = _passed(result.get("passed"), label), _score(result.get("score"), label)
    detailed = _detailed(named, result, label)
    known = "label" in entry or "result" in entry or any(key in result for key in _OUTCOME)
    if not known or (passed is None and score is None and not detailed):
        raise ValueError(f"label {label!r} says nothing: its result needs passed, score or custom_fields")
    if score is None and passed is not None:
        score = float(passed)
    parts = {"detailed_results": detailed, "custom_fields": dict(custom)}
    details = details_json({key: value for key, value in parts.items() if value})
    return Verdict(label=label, passed=passed, score=score, details=details)


def _label(entry: Mapping[str, Any], default_label: str) -> tuple[str, dict[str, Any]]:
    """A label's name, and what else is said about the label itself: its description, say."""
    label = entry.get("label", default_label)
    named = {key: entry[key] for key in ("name", "description") if entry.get(key) is not None}
    if isinstance(label, Mapping):
        named = _joined(named, {k: v for k, v in label.items() if k != "name" and v is not None}, "label")
        label = label.get("name")
    if not isinstance(label, str) or not label:
        raise ValueError(f"a label's name must be a text that is not empty, not {_shown(entry.get('label'))}")
    return label, named


def _passed(value: Any, label: str) -> bool | None:
    plain = _plain(value)
    if plain is None or isinstance(plain, bool):
        return plain
    if plain in (0, 1):
        return bool(plain)
    raise ValueError(f"passed of label {label!r} must be true or false, not {_shown(value)}")


def _score(value: Any, label: str) -> float | None:
    plain = _plain(value)
    if plain is None:
        return None
    if not isinstance(plain, (int, float)):
        raise ValueError(f"the score of label {label!r} must be a number, not {_shown(value)}")
    if not math.isfinite(plain):
        raise ValueError(f"the score of label {label!r} is {plain}, which is no number to average")
    return float(plain)


def _detailed(named: Mapping[str, Any], result: Mapping[str, Any], label: str) -> dict[str, Any]:
    """What is said about the label and its result beside passed and score: custom fields among the rest."""
    detailed = _joined(named, {key: value for key, value in result.items() if key not in _OUTCOME}, "result")
    for key in ("details", "detailed_results"):
        value = result.get(key)
        if value is not None:
            detailed = _joined(detailed, value if isinstance(value, Mapping) else {key: value}, key)
    return _joined(detailed, _custom(result, f"label {label!r}"), "custom_fields")


def _custom(holder: Mapping[str, Any], owner: str) -> dict[str, Any]:
    custom = holder.get("custom_fields")
    if custom is None:
        return {}
    if not isinstance(custom, Mapping):
        raise ValueError(f"custom_fields of {owner} must be a mapping, not {_shown(custom)}")
    return dict(custom)


def _joined(first: Mapping[str, Any], more: Mapping[str, Any], heading: str) -> dict[str, Any]:
    """Both mappings as one; where they share a key, ``more`` stays together under its heading."""
    if not first.keys() & more.keys():
        return {**first, **more}
    while heading in first:
        heading += "_"
    return {**first, heading: dict(more)}


def details_json(parts: Mapping[str, Any]) -> str | None:
    """A verdict's details as JSON, None where there are none; raises ValueError for what JSON can't hold.

    Numbers that are not finite, for which JSON has no word, become the texts ``nan``, ``inf`` and ``-inf``.
    """
    if not parts:
        return None
    try:
        text = canonical_json(parts)
        # orjson writes null for what is not finite, too.
        return (canonical_json(with_leaves(parts, _finite)) if b"null" in text else text).decode()
    except TypeError as error:
        raise ValueError(f"the details of a label must be JSON values: {error}") from error


def _finite(leaf: Any) -> Any:
    plain = _plain(leaf)
    return str(plain) if isinstance(plain, float) and not math.isfinite(plain) else leaf


def _plain(value: Any) -> Any:
    """numpy's and torch's scalars as Python's."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


CELLS: Final = ("tp", "tn", "fp", "fn")
CELL_NAMES: Final = ("true_positives", "true_negatives", "false_positives", "false_negatives")


def _ratio(part: Floats, whole: Floats) -> Floats:
    """NaN where the whole is zero: a recall without positives is no recall of 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), np.nan)


def _precision(cells: Floats) -> Floats:
    return _ratio(cells[..., 0], cells[..., 0] + cells[..., 2])


def _recall(cells: Floats) -> Floats:
    return _ratio(cells[..., 0], cells[..., 0] + cells[..., 3])


def _f1(cells: Floats) -> Floats:
    return _ratio(2 * cells[..., 0], 2 * cells[..., 0] + cells[..., 2] + cells[..., 3])


def _specificity(cells: Floats) -> Floats:
    return _ratio(cells[..., 1], cells[..., 1] + cells[..., 2])


def _balanced_accuracy(cells: Floats) -> Floats:
    return (_recall(cells) + _specificity(cells)) / 2


def _accuracy(cells: Floats) -> Floats:
    return _ratio(cells[..., 0] + cells[..., 1], cells.sum(axis=-1))


MEASURES: Final[dict[str, Callable[[Floats], Floats]]] = {
    "accuracy": _accuracy,
    "precision": _precision,
    "recall": _recall,
    "f1": _f1,
    "balanced_accuracy": _balanced_accuracy,
    "specificity": _specificity,
}
"""Each takes cells (..., 4) in the order of CELLS and gives numbers (...) in 0 to 1; NaN where undefined."""


def without_cases(name: str, cells: Floats) -> Floats:
    """A measure as the two-phase framework has it: 0 where it has no cases, its parts among them.

    >>> float(without_cases("balanced_accuracy", np.array([1.0, 0.0, 0.0, 0.0])))
    0.5
    """
    if name == "balanced_accuracy":
        return (without_cases("recall", cells) + without_cases("specificity", cells)) / 2
    return np.nan_to_num(MEASURES[name](cells), nan=0.0)


def measure(name: str, zero: bool = False) -> "Aggregation":
    """The aggregation of one measure: items' cells add up, whatever their number.

    Without cases it is NaN, with ``zero`` 0; then the number of samples that were counted stands behind
    the cells.
    """
    from metrics.aggregation import Aggregation

    def compute(total: Floats, n: Any) -> Floats:
        cells = total[..., : len(CELLS)]
        return without_cases(name, cells) if zero else MEASURES[name](cells)

    return Aggregation(name, k=len(CELLS) + zero, compute=compute, bounds=(0.0, 1.0))


def measures_of(statistics: Floats, zero: bool = False) -> dict[str, float | None]:
    """All measures and the cells' totals, from the cells of n items (n, 4)."""
    total = statistics.sum(axis=0)
    numbers = {
        name: float(without_cases(name, total) if zero else compute(total))
        for name, compute in MEASURES.items()
    }
    known = {name: None if np.isnan(number) else number for name, number in numbers.items()}
    counts = [int(count) if count.is_integer() else count for count in total.tolist()]
    return known | dict(zip(CELL_NAMES, counts, strict=True))


def with_cells(source: BatchSource, ignored: bool = False) -> BatchSource:
    """The same statistics with the cells in place of the vectors; verdicts without cells are unscored.

    With ``ignored`` such a verdict has four zeros instead, and behind the cells stands whether it counts: the
    two-phase framework ignores a verdict about which nothing is said beside passed and score.
    """
    read = _cells_or_zeros if ignored else _cells

    def batches(columns: Sequence[str]) -> Iterable[pa.RecordBatch]:
        for batch in source(list(dict.fromkeys([*columns, "details_json", "scored"]))):
            yield _replaced(batch, list(columns), read)

    return batches


def _cells_or_zeros(details: str | None) -> list[float]:
    cells = _cells(details)
    if cells is not None:
        return [*cells, 1.0]
    said = details is not None and bool(orjson.loads(details).get("detailed_results"))
    return [0.0] * len(CELLS) + [float(said)]


def _replaced(
    batch: pa.RecordBatch, columns: Sequence[str], read: Callable[[str | None], list[float] | None]
) -> pa.RecordBatch:
    vectors = [read(text) for text in batch.column("details_json").to_pylist()]
    held = zip(batch.column("scored").to_pylist(), vectors, strict=True)
    made = {
        "statistics": pa.array(vectors, FLOATS),
        "scored": pa.array([scored and vector is not None for scored, vector in held], pa.bool_()),
    }
    arrays = [made[name] if name in made else batch.column(name) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([STATISTICS.field(name) for name in columns]))


def _cells(details: str | None) -> list[float] | None:
    """The four counts that a method put among its custom fields or details; None where there is none.

    ``{"tp": 2, "fp": 1}`` counts, absent ones being zero; ``{"classification": "tp"}`` is one of that cell.
    """
    if details is None:
        return None
    for held in map(orjson.loads(details).get, ("custom_fields", "detailed_results")):
        if not isinstance(held, Mapping):
            continue
        if held.get("classification") in CELLS:
            return [float(held["classification"] == cell) for cell in CELLS]
        if any(cell in held for cell in CELLS):
            return [_count(held.get(cell)) for cell in CELLS]
    return None


def _count(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
