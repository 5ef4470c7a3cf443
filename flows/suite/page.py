"""A night as a page, ``suite.html``: benchmark × model with intervals, verdicts and links to reports, then
every number beside its baseline."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from flows.suite.scores import NOTHING, key_of, night_sentences
from metrics.statistics.gate import worst_of
from tasks.comparison.matching import GroupKey, result_key
from tasks.comparison.runs import ComparedRun, key_with_model
from tasks.history.nights import Night
from tasks.models.tally import AnswerCounts
from tasks.reduction.facets import facet_words
from tasks.reporting import numbers
from tasks.reporting.night import write_night

PAGE: Final = "suite.html"
SHOWN_OPEN: Final = 12  # a longer table of all numbers is folded


@dataclass(frozen=True)
class Number:
    """One result row of the night: which run and group it is of, and its pair of the comparison."""

    run: ComparedRun
    key: GroupKey
    row: Mapping[str, Any]
    pair: Mapping[str, Any]

    @property
    def model(self) -> str:
        """Which model it is of; "all" where it is of several."""
        return dict(self.key.facets).get("model_name") or self.row["model_name"] or "all"

    @property
    def pair_name(self) -> str:
        """Its pair with the label: what numbers have to share to be compared."""
        return f"{self.key.pair} · {self.key.label}" if self.key.label else self.key.pair

    @property
    def overall(self) -> bool:
        """Whether it is of no group of items."""
        return set(dict(self.key.facets)) <= {"model_name", "prompt_template"}


def write_page(
    folder: Path,
    about: Mapping[str, Any],
    runs: Mapping[str, ComparedRun],
    comparison: Mapping[str, Any] | None,
) -> None:
    """Writes the page into the night's folder. ``about`` is what `about_night` gives, ``comparison`` what
    `comparison_document` gives, None without a baseline. Raises FileUnwritable."""
    found = list(_numbers(runs.values(), (comparison or NOTHING)["pairs"]))
    models = list(dict.fromkeys(number.model for number in found))
    context = {
        **about,
        "models": models,
        "names_shown": {*models, *(number.key.benchmark for number in found)},
        "matrix": [_line(name, own, models, folder) for name, own in _by_benchmark(found).items()],
        "rows": [_detail(number) for number in found],
        "open": len(found) <= SHOWN_OPEN,
        "notes": list(night_sentences(list(runs.values()), comparison or NOTHING)),
    }
    write_night(folder / PAGE, context)


def about_night(night: Night, title: str, said: str, outcome: str | None) -> dict[str, Any]:
    """What the head of the page says of a night."""
    answers = [AnswerCounts.of(entry.requests or {}, night.attempt > 1) for entry in night.evaluations]
    return {
        "title": title,
        "run": f"{night.run_id} · {numbers.moment(night.place)}",
        "said": said,
        "outcome": outcome,
        "baseline": ", ".join(night.baseline),
        "failed": [entry for entry in night.evaluations if not entry.ok],
        "evaluated": sum(entry.ok for entry in night.evaluations),
        "asked": sum(counts.asked for counts in answers),
        "kept": sum(counts.kept for counts in answers),
        "reused": sum(counts.reused for counts in answers),
    }


def _numbers(runs: Iterable[ComparedRun], pairs: Sequence[Mapping[str, Any]]) -> Iterator[Number]:
    compared = {key_of(pair): pair for pair in pairs if pair["candidate_facets"] is not None}
    for run in runs:
        for row in run.results:
            key = key_with_model(result_key(row), run)
            yield Number(run, key, row, compared.get(key, {}))


def _by_benchmark(found: Sequence[Number]) -> dict[str, list[Number]]:
    grouped: dict[str, list[Number]] = {}
    for number in found:
        grouped.setdefault(number.key.benchmark, []).append(number)
    return grouped


def _line(benchmark: str, own: Sequence[Number], models: Sequence[str], folder: Path) -> dict[str, Any]:
    """A benchmark's headline pair, and a cell for each model."""
    first = next((number.pair_name for number in own if number.row["value"] is not None), own[0].pair_name)
    cells = [_cell([number for number in own if number.model == model], first, folder) for model in models]
    return {"benchmark": benchmark, "pair": first, "cells": cells}


def _cell(own: Sequence[Number], headline: str, folder: Path) -> dict[str, Any] | None:
    """What a model came to on a benchmark: its number of the headline pair over all items, and the worst
    verdict of all its pairs; None where it has none. No number of a group stands for the model. Of several
    prompts it is that of the first, which is named."""
    if not own:
        return None
    groups = [number for number in own if number.pair_name == headline]
    overall = [number for number in groups if number.overall]
    found = overall[0] if overall else None
    verdicts = [number.pair["verdict"] for number in own if number.pair.get("verdict")]
    output = (found or own[0]).run.manifest.get("output")
    report = Path(str(output)) / "report.html"
    shown = _shown(found) if found else _nothing(len(groups))
    if found and len(overall) > 1:
        shown["interval"] += f" · {found.key.facet('prompt_template')}"
    return {
        **shown,
        "verdict": worst_of(verdicts) if verdicts else None,
        "failed": sum(number.row["status"] == "failed" for number in own),
        "link": quote(os.path.relpath(report, folder)) if output and report.is_file() else None,
    }


def _nothing(groups: int) -> dict[str, Any]:
    """What stands for a model without a number over all items: how many groups have one."""
    said = numbers.plural(groups, "group") if groups else numbers.MISSING
    return {"value": None, "text": said, "interval": "", "difference": numbers.MISSING}


def _shown(number: Number) -> dict[str, Any]:
    """A number with its interval, and how it differs from its baseline."""
    row = number.row
    return {
        "value": row["value"],
        "text": "failed" if row["status"] == "failed" else numbers.number(row["value"]),
        "interval": numbers.interval(row["ci_low"], row["ci_high"], like=row["value"]),
        "difference": numbers.signed(number.pair.get("difference"), like=row["value"]),
    }


def _detail(number: Number) -> dict[str, Any]:
    row, pair, key = number.row, number.pair, number.key
    facets = [facet_words(value) for name, value in key.facets if name != "model_name"]
    return {
        "benchmark": key.benchmark,
        "model": number.model,
        "group": " · ".join([*facets, *([key.label] if key.label else [])]),
        "pair": key.pair,
        **_shown(number),
        "base": numbers.number(pair.get("base"), like=row["value"]),
        "between": numbers.interval(pair.get("ci_low"), pair.get("ci_high"), like=row["value"]),
        "verdict": pair.get("verdict"),
        "reason": row["error"] if row["status"] == "failed" else pair.get("reason"),
    }
