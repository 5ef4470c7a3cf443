"""The numbers of a made file by the rules of ``docs/two-phase.md``, slow and plain, sharing nothing with the
project: rows are dictionaries, groups are loops.
"""

import statistics
from typing import Any

from tests.parity.made import MadeFile, Row, judge, own

Group = tuple[str, str, tuple[str, ...]]
"""Metric, label, facet values as text."""


def expected(file: MadeFile) -> dict[Group, Row | None]:
    """The value keys of every group; None where the number has failed: too few samples."""
    results = _results(file.rows)
    found: dict[Group, Row | None] = {}
    for metric in file.metrics:
        groups: dict[Group, list[Row]] = {}
        for result in results:
            if _kept(metric.get("labels", {}), result["label"]):
                values = tuple(_facet(result, facet) for facet in metric["facets"])
                groups.setdefault((metric["name"], result["label"], values), []).append(result)
        for key, group in groups.items():
            found[key] = numbers(metric["type"], metric["params"], group)
    return found


def _results(rows: list[Row]) -> list[Row]:
    """A row of evaluation results for each response and label, in the order of the file."""
    results = []
    for row in rows:
        for entry in judge(row["response"])["labels"]:
            said = entry["result"]
            details = {name: value for name, value in said.items() if name not in ("passed", "score")}
            results.append({
                "item_id": row["item_id"], "model_name": row["model_name"], "metadata": row["metadata"],
                "label": entry["label"]["name"], "passed": said["passed"], "score": said["score"],
                "detailed_results": details,
            })  # fmt: skip
    return results


def _kept(labels: Row, label: str) -> bool:
    if "include" in labels:
        return label in labels["include"]
    return label not in labels.get("exclude", [])


def _facet(result: Row, facet: str) -> str:
    if "." not in facet:
        return str(result.get(facet, "unknown"))
    value: Any = result
    for part in facet.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if value is None and facet == "metadata.prompt_template":
        return "default"  # what a row does not say the run's config says: on the page of differences
    return str(value) if value else "unknown"


def numbers(kind: str, params: Row, group: list[Row]) -> Row | None:
    """The built-in metric, or the user's, over one group."""
    items: dict[str, list[Row]] = {}
    for result in group:
        items.setdefault(result["item_id"], []).append(result)
    counts = {"total_sample_count": len(group), "total_item_count": len(items),
              "average_sample_count": len(group) / len(items)}  # fmt: skip
    scores = sorted(result["score"] for result in group)
    match kind:
        case "own":
            return own(group, [])
        case "pass_at_k":
            value = _pass_at_k(params, items)
            return None if value is None else {f"pass_at_{params['k']}": value, **counts}
        case "classification":
            return _classification(params.get("num_trials", 1), group)
        case "mean":
            return {"mean": statistics.mean(scores), "sample_count": len(scores)}
        case "median":
            return {"median": statistics.median(scores), "sample_count": len(scores)}
        case "percentile":
            percent = params.get("percentile", 95.0)
            return {f"percentile_{percent}": _linear(scores, percent), "sample_count": len(scores)}
        case "pass_rate":
            passed = sum(result["passed"] for result in group)
            return {"pass_rate": passed / len(group), "passed_count": passed, "total_count": len(group)}
    return {"count": len(group)}


def _pass_at_k(params: Row, items: dict[str, list[Row]]) -> float | None:
    k, trials = params["k"], params.get("num_trials", 1)
    if any(len(own_rows) < k * trials for own_rows in items.values()):
        return None
    rates = []
    for trial in range(trials):
        passed = [any(row["passed"] for row in rows[trial * k : (trial + 1) * k]) for rows in items.values()]
        rates.append(sum(passed) / len(passed))
    aggregation = params.get("aggregation", "mean")
    over = {"mean": statistics.mean, "median": statistics.median, "min": min, "max": max}
    return float(over[aggregation](rates))


def _classification(num_trials: int, group: list[Row]) -> Row:
    counted = [result for result in group if result["detailed_results"]]
    taken: dict[str, int] = {}
    cells = dict.fromkeys(("tp", "tn", "fp", "fn"), 0)
    for result in counted:
        item = result["item_id"]
        if taken.get(item, 0) < num_trials:
            taken[item] = taken.get(item, 0) + 1
            for cell in cells:
                cells[cell] += bool(result["detailed_results"].get(cell))
    tp, tn, fp, fn = cells.values()
    precision, recall, specificity = _share(tp, tp + fp), _share(tp, tp + fn), _share(tn, tn + fp)
    return {
        "true_positives": tp, "true_negatives": tn, "false_positives": fp, "false_negatives": fn,
        "precision": precision, "recall": recall, "specificity": specificity,
        "f1": _share(2 * precision * recall, precision + recall),
        "balanced_accuracy": (recall + specificity) / 2, "accuracy": _share(tp + tn, sum(cells.values())),
        "sample_count": len(counted), "ignored_count": len(group) - len(counted), "total_count": len(group),
    }  # fmt: skip


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _linear(scores: list[float], percent: float) -> float:
    place = percent / 100 * (len(scores) - 1)
    low = int(place)
    if low == place:
        return scores[low]
    return scores[low] + (scores[low + 1] - scores[low]) * (place - low)
