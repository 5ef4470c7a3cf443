"""Two runs of the same benchmarks, compared number by number and sample by sample.

Results have to agree within 1e-6 of their size, log-likelihoods within 1e-4; whether a continuation was
greedy, generated texts, the hashes of documents, prompts and targets, and what the results' file says of the
benchmark (its shots, its samples, which metrics are better higher) have to be the same.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

METRIC, LIKELIHOOD = 1e-6, 1e-4
SECTIONS = ("n-shot", "n-samples", "higher_is_better", "versions")
HASHES = ("doc_hash", "prompt_hash", "target_hash")
Row = dict[str, Any]


@dataclass
class Comparison:
    """What was compared of one benchmark, the largest differences, and what is wrong with it."""

    name: str
    metrics: int = 0
    answers: int = 0
    worst_metric: float = 0.0
    worst_likelihood: float = 0.0
    wrong: list[str] = field(default_factory=list)
    scored: bool = False
    """Whether the peer's value of any sample is neither 0 nor empty: what is 0 throughout is easily equal."""

    def line(self) -> str:
        """The benchmark's row of the table."""
        verdict = "equal" if not self.wrong else f"DIFFERS: {self.wrong[0]}"
        return (
            f"{self.name:26} {self.metrics:3} metrics {self.worst_metric:8.1e}  {self.answers:5} answers "
            f"{self.worst_likelihood:8.1e}  {verdict}"
        )


def compare(theirs: Path, ours: Path, names: Sequence[str]) -> Iterator[Comparison]:
    """The benchmarks one by one; a group has numbers and no samples of its own."""
    expected, own = results(theirs), results(ours)
    about, own_about = sections(theirs), sections(ours)
    for name in names:
        comparison = Comparison(name)
        _compare_numbers(comparison, expected[name], own.get(name, {}))
        for section, said in about[name].items():
            if (found := own_about.get(name, {}).get(section)) != said:
                comparison.wrong.append(f"{section} is {found}, there {said}")
        if logs(theirs, name):
            _compare_samples(comparison, samples(theirs, name), samples(ours, name))
        yield comparison


def results(folder: Path) -> dict[str, dict[str, Any]]:
    """Benchmark or group → "metric,filter" → value; standard errors left out."""
    files = sorted(folder.rglob("results_*.json"), key=lambda file: file.name)
    documents = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return {
        name: {key: value for key, value in entry.items() if "," in key and "_stderr" not in key}
        for document in documents
        for name, entry in document["results"].items()
    }


def sections(folder: Path) -> dict[str, Row]:
    """Benchmark or group → what the sections beside the results say of it."""
    files = sorted(folder.rglob("results_*.json"), key=lambda file: file.name)
    documents = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return {
        name: {section: document[section].get(name) for section in SECTIONS if section in document}
        for document in documents
        for name in document["results"]
    }


def logs(folder: Path, name: str) -> list[Path]:
    """The sample logs of a benchmark."""
    return sorted(folder.rglob(f"samples_{name}_[0-9]*.jsonl"))


def samples(folder: Path, name: str) -> dict[tuple[int, str], Row]:
    """(document, filter) → the row of a benchmark's last log."""
    found = logs(folder, name)
    lines = found[-1].read_text(encoding="utf-8").splitlines() if found else []
    rows = (json.loads(line) for line in lines)
    return {(row["doc_id"], row["filter"]): row for row in rows}


def _compare_numbers(comparison: Comparison, theirs: Row, ours: Row) -> None:
    for key, value in theirs.items():
        own = ours.get(key)
        comparison.metrics += 1
        off = abs(value - own) / max(1.0, abs(value)) if isinstance(own, int | float) else math.inf
        comparison.worst_metric = max(comparison.worst_metric, off)
        if not off <= METRIC:
            comparison.wrong.append(f"{key} is {own}, there {value}")


def _compare_samples(comparison: Comparison, theirs: dict[Any, Row], ours: dict[Any, Row]) -> None:
    if theirs.keys() != ours.keys():
        comparison.wrong.append(f"{len(ours)} samples, there {len(theirs)}")
    for key in theirs.keys() & ours.keys():
        expected, own = _answers(theirs[key]), _answers(ours[key])
        comparison.answers += len(expected)
        if len(own) != len(expected):
            comparison.wrong.append(f"document {key[0]} has {len(own)} answers, there {len(expected)}")
        for one, other in zip(expected, own, strict=False):
            _compare_answers(comparison, key[0], one, other)
        for name in HASHES:
            if theirs[key][name] != ours[key][name]:
                comparison.wrong.append(f"document {key[0]} has another {name}")
        for name in theirs[key]["metrics"]:
            expected, own = theirs[key].get(name), ours[key].get(name)
            comparison.scored = comparison.scored or expected not in (0, None, [], "")
            if not same_value(expected, own):
                comparison.wrong.append(f"document {key[0]}: {name} is {own!r:.60}, there {expected!r:.60}")
        if not same_value(theirs[key]["filtered_resps"], ours[key]["filtered_resps"]):
            kept = ours[key]["filtered_resps"], theirs[key]["filtered_resps"]
            comparison.wrong.append(
                f"document {key[0]} is filtered to {kept[0]!r:.60}, there {kept[1]!r:.60}"
            )
        if _asked(theirs[key]) != _asked(ours[key]):
            comparison.wrong.append(f"document {key[0]} is asked something else")


def same_value(one: Any, other: Any) -> bool:
    """Whether two values of a sample are equal, numbers to ``METRIC`` of their size, those in texts too: the
    harness writes the log-likelihood of no token as 0. Its NaN, which is no JSON, is null here."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same_value, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_value(one[key], other[key]) for key in one)
    if isinstance(one, str) and isinstance(other, str) and one != other:
        one, other = _number(one), _number(other)
    if other is None and isinstance(one, float):
        return math.isnan(one)
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    if numbers:
        alike = math.isnan(one) and math.isnan(other)
        return alike or one == other or abs(one - other) <= METRIC * max(1.0, abs(one))
    return bool(one == other)


def _number(text: str) -> float | str:
    """The number that a text is, else the text."""
    try:
        return float(text)
    except ValueError:
        return text


def _asked(row: Row) -> list[Any]:
    """The texts of every request."""
    return [
        [value for value in group.values() if isinstance(value, str)] for group in row["arguments"].values()
    ]


def _compare_answers(comparison: Comparison, document: int, theirs: Any, ours: Any) -> None:
    if isinstance(theirs, str) or not isinstance(ours, tuple):
        same = theirs == ours
    else:
        off = abs(theirs[0] - ours[0])
        comparison.worst_likelihood = max(comparison.worst_likelihood, off)
        same = off <= LIKELIHOOD and theirs[1] == ours[1]
    if not same:
        comparison.wrong.append(f"document {document} is answered {ours!r:.80}, there {theirs!r:.80}")


def _answers(row: Row) -> list[Any]:
    """All repeats of all requests: a text, or (log-likelihood, greedy), greedy None for a document's."""
    rolling = len(row["arguments"].get("gen_args_0", {})) == 1
    return [
        (float(answer), None)
        if rolling and answer is not None
        else (float(answer[0]), answer[1])
        if isinstance(answer, list)
        else answer
        for answers in row["resps"]
        for answer in answers
    ]
