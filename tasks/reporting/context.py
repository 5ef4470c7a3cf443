"""What the report's template shows: headline facts, plots, tables, usage and provenance as plain records.

``page_context`` makes all of it from the manifest, the result rows and the counts of a pass over the samples.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final
from urllib.parse import urlencode

from tasks.comparison.runs import unpriced
from tasks.models.tally import asked_and_reused
from tasks.reduction.facets import facet_cell, facet_texts, facet_words
from tasks.reporting import numbers
from tasks.reporting.diagnostics.findings import SHOWN_OF_A_KIND, Diagnostic, Example, grouped
from tasks.reporting.numbers import RATING_COLUMNS, rating_cells, rating_effects, strongest_first
from tasks.reporting.plots import curve_rows, curves, forests, group_names
from tasks.reporting.terminal import next_command
from tasks.reporting.view import OWN_FACETS, Place, ResultRow, SampleView, facet_names, failures

PANELS_OPEN: Final = 8  # further plots are folded away
ROWS_OPEN: Final = 12  # a longer table that says what the plots show is folded away


@dataclass(frozen=True)
class Fact:
    """A number at the head of the page; ``link`` leads to the samples it counts."""

    name: str
    value: str
    note: str = ""
    link: str | None = None
    alarming: bool = False


@dataclass
class ModelUsage:
    """Samples of one model: how many, how many without an answer, tokens, and seconds an answer took."""

    samples: int = 0
    failed: int = 0
    at_limit: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    timed: int = 0
    seconds: float = 0.0

    @property
    def seconds_each(self) -> float | None:
        """Mean time of an answer; None if no endpoint reported any."""
        return self.seconds / self.timed if self.timed else None


@dataclass
class Usage:
    """Counts by model, and the number of distinct samples, in the order in which models appear; ``unscored``
    counts repeats without a score by what they lack it of and by the sample's places."""

    models: dict[str, ModelUsage] = field(default_factory=dict)
    items: set[str] = field(default_factory=set)
    unscored: Counter[tuple[tuple[str, str], Place]] = field(default_factory=Counter)

    def add(self, sample: SampleView) -> None:
        """Takes one sample into account."""
        self.items.add(sample.item_id)
        if lacking := {of: count for of, count in sample.unscored.items() if count}:
            place = tuple(sample.places.items())
            self.unscored.update({(of, place): count for of, count in lacking.items()})
        usage = self.models.setdefault(sample.model_name, ModelUsage())
        for response in sample.counted:
            usage.samples += 1
            usage.failed += response.failed
            usage.at_limit += response.at_limit
            usage.prompt_tokens += response.prompt_tokens or 0
            usage.completion_tokens += response.completion_tokens or 0
            if response.seconds is not None:
                usage.timed += 1
                usage.seconds += response.seconds

    def merge(self, other: "Usage") -> None:
        """Takes the samples of another pass into account."""
        self.items |= other.items
        self.unscored.update(other.unscored)
        for name, theirs in other.models.items():
            usage = self.models.setdefault(name, ModelUsage())
            for counted in fields(ModelUsage):
                setattr(usage, counted.name, getattr(usage, counted.name) + getattr(theirs, counted.name))

    def unscored_links(self) -> Callable[[ResultRow], str | None]:
        """The address, within the page, of a row's unscored samples; None where the page can't show just
        these, as where answers of one item are of several groups."""
        known: dict[tuple[str, ...], Counter[tuple[Any, ...]]] = {}

        def link(row: ResultRow) -> str | None:
            of = ("label", row.label) if row.label else ("pair", row.pair)
            names = tuple(row.group_parts)
            if names not in known:
                known[names] = Counter()
                for (lacking, place), count in self.unscored.items():
                    known[names][lacking, *map(dict(place).get, names)] += count
            if known[names][of, *row.group_parts.values()] != row.n_unscored:
                return None
            wanted = {"label": f"{row.label}:?"} if row.label else {"pair": row.pair, "outcome": "unscored"}
            return _samples_link(**wanted, **{f"f.{name}": text for name, text in row.group_parts.items()})

        return link

    @property
    def samples(self) -> int:
        """Samples of all models."""
        return sum(usage.samples for usage in self.models.values())

    @property
    def failed(self) -> int:
        """Samples without an answer, of all models."""
        return sum(usage.failed for usage in self.models.values())


def page_context(
    manifest: Mapping[str, Any],
    rows: Sequence[ResultRow],
    diagnostics: Sequence[Diagnostic],
    usage: Usage,
    statement: str | None,
) -> dict[str, Any]:
    """The template's variables."""
    computed = [row for row in rows if row.status != "failed"]
    whole, groups = failures(rows)
    on_curves = curve_rows(computed)
    plots = forests([row for row in computed if row not in on_curves])
    folded = plots[PANELS_OPEN:] + forests(on_curves)
    matrix = score_matrix(rows) if any(plot.every for plot in plots) else None
    return {
        "title": benchmark_name(manifest, rows),
        "names_shown": names_shown(rows),
        "run": run_line(manifest),
        "facts": facts(manifest, rows, usage),
        "rows": rows,
        "matrix": matrix,
        "table_open": _says_more(rows) or len(rows) <= ROWS_OPEN,
        "outcomes": list(dict.fromkeys(name for row in rows for name in row.outcome_counts)),
        "failed": [*((row, "") for row in whole), *((row, row.group) for row in groups)],
        "doublings": [row for row in computed if row.doubling is not None],
        "facet_names": facet_names(rows),
        "facet_cell": facet_cell,
        "show": _optional_columns(rows),
        "plots": plots[:PANELS_OPEN],
        "more_plots": folded,
        "curves": curves(computed),
        "ratings": [_rated(rated) for rated in manifest.get("ratings") or ()],
        "rating_columns": RATING_COLUMNS,
        "inspected": manifest.get("inspect") or (),
        "diagnostics": diagnostics,
        "grouped": grouped,
        "shown_of_a_kind": SHOWN_OF_A_KIND,
        "usage": usage,
        "costs": costs(manifest),
        "accounts": accounts(manifest, "models"),
        "judging": accounts(manifest, "judges"),
        "currency": manifest.get("currency"),
        "steps": steps(manifest),
        "provenance": provenance(manifest),
        "manifest_text": json.dumps(manifest, indent=2, ensure_ascii=False, default=str),
        "statement": statement,
        "unscored_link": usage.unscored_links(),
        "example_link": example_link,
        "retry": next_command(manifest, _command(manifest)),
        "results_json": {
            # A row over all facets would be a value of none of them.
            "rows": [_pivot_record(row) for row in computed if row.other_facets or not facet_names(rows)],
            "lower_is_better": sorted({row.pair for row in rows if row.higher_is_better is False}),
        },
    }


def names_shown(rows: Iterable[ResultRow]) -> set[str]:
    """What the rows are called by: benchmark, model, prompt, facets and labels."""
    return {name for row in rows for name in (row.benchmark, row.label or "", *row.group_parts.values())}


@dataclass(frozen=True)
class PairHead:
    """A pair's column of the table of scores."""

    title: str
    filter: str
    arrow: str


@dataclass(frozen=True)
class ScoreMatrix:
    """Groups × pairs: for each group its rows in the order of the pairs, None where it has none."""

    pairs: tuple[PairHead, ...]
    rows: tuple[tuple[str, tuple[ResultRow | None, ...]], ...]


def score_matrix(rows: Sequence[ResultRow]) -> ScoreMatrix:
    """All scores with a line a group: what many groups are compared in."""
    several = len({row.benchmark for row in rows}) > 1
    names = group_names(rows)
    heads: dict[PairHead, None] = {}
    found: dict[Place, dict[PairHead, ResultRow]] = {}
    for row in rows:
        parts = [row.benchmark] if several else []
        head = PairHead(" · ".join([*parts, row.result_name]), row.filter, row.arrow)
        heads[head] = None
        found.setdefault(row.place, {})[head] = row
    lines = ((names[group], tuple(map(own.get, heads))) for group, own in found.items())
    return ScoreMatrix(tuple(heads), tuple(lines))


def _unscored(rows: Iterable[ResultRow]) -> int:
    """Samples without a score, each once a pair: its other reductions count the same, and where a row is over
    all groups, these do."""
    pairs: dict[tuple[Any, ...], dict[str, list[ResultRow]]] = {}
    for row in rows:
        cell = (row.benchmark, row.model_name, row.prompt_template, row.filter, row.metric, row.label)
        pairs.setdefault(cell, {}).setdefault(row.reduction, []).append(row)
    found = 0
    for reductions in pairs.values():
        own = next(iter(reductions.values()))
        found += sum(row.n_unscored for row in [row for row in own if not row.other_facets] or own)
    return found


def _rated(rated: Mapping[str, Any]) -> dict[str, Any]:
    """The strengths of one prompt and filter as the template shows them."""
    said = [*rating_effects(rated), *([rated["warning"]] if rated["warning"] else [])]
    return {
        "name": f"prompt {rated['prompt_template']}, filter {rated['filter']}",
        "rows": [(row, rating_cells(row)) for row in strongest_first(rated)],
        "said": "; ".join(said),
    }


def facts(manifest: Mapping[str, Any], rows: Sequence[ResultRow], usage: Usage) -> list[Fact]:
    """The numbers at the head of the page."""
    models = len(usage.models)
    # The rows know only their groups' items: with facets the largest group would pass for the whole.
    items = len(usage.items) or max((row.n_items for row in rows), default=0)
    failed_pairs, failed_groups = map(len, failures(rows))
    unscored = _unscored(rows)
    found = [
        Fact("items", numbers.count(items), f"asked of {numbers.plural(models, 'model')}"),
        Fact("samples", numbers.count(usage.samples), link="#samples"),
        Fact(
            "without an answer",
            numbers.count(usage.failed),
            "failed requests" if usage.failed else "every request succeeded",
            _samples_link(outcome="failed") if usage.failed else None,
            usage.failed > 0,
        ),
        Fact(
            "unscored",
            numbers.count(unscored),
            "over all pairs",
            _samples_link(outcome="unscored") if unscored else None,
            unscored > 0,
        )
        if any(row.n_samples for row in rows)
        else None,
        Fact("failed pairs", numbers.count(failed_pairs), link="#failed", alarming=True)
        if failed_pairs
        else None,
        Fact("failed groups", numbers.count(failed_groups), link="#failed", alarming=True)
        if failed_groups
        else None,
        _requests_fact(manifest.get("requests")),
        Fact("wall time", numbers.duration(manifest["wall_seconds"])) if "wall_seconds" in manifest else None,
    ]
    return [fact for fact in found if fact]


def run_line(manifest: Mapping[str, Any]) -> str:
    """Which run this is and when it was, on one line."""
    parts: list[str | None] = [str(manifest[key]) for key in ("run_name", "run_id") if manifest.get(key)]
    if manifest.get("started"):
        parts.append(numbers.moment(manifest["started"]))
    return " · ".join(dict.fromkeys(part for part in parts if part))


def costs(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Cost, tokens and requests of the manifest as rows, whatever their nesting; money with its currency."""
    found: list[tuple[str, str]] = []
    for key in ("requests", "tokens", "cost", "saved"):
        value = manifest.get(key)
        if value is None:
            continue
        if key == "cost":
            found.append((key, numbers.money(value, manifest.get("currency"))))
            if left_out := unpriced(manifest):
                found.append(("unpriced", ", ".join(left_out)))
        elif key == "saved" and isinstance(value, Mapping):
            paid = {name: part for name, part in value.items() if name.endswith("cost")}
            found += [*flat(key, {name: part for name, part in value.items() if name not in paid})]
            amounts = {name: numbers.money(part, manifest.get("currency")) for name, part in paid.items()}
            found += [(f"saved · {name.replace('_', ' ')}", amount) for name, amount in amounts.items()]
        else:
            found += flat(key, value)
    return found


def accounts(manifest: Mapping[str, Any], key: str) -> dict[str, Mapping[str, Any]]:
    """Model → what its requests took, of the models that answer (``models``) or grade (``judges``)."""
    found = manifest.get(key)
    if not isinstance(found, Mapping):
        return {}
    return {str(name): account for name, account in found.items() if isinstance(account, Mapping)}


def steps(manifest: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Stage, and how many of its steps were computed, served from the cache, and failed."""
    stages = manifest.get("steps")
    if not isinstance(stages, Mapping):
        return []
    return [
        (str(stage), [numbers.count(n.get(kind) or 0) for kind in ("computed", "cached", "failed")])
        for stage, n in stages.items()
        if isinstance(n, Mapping)
    ]


def provenance(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the run was made of, as rows; configuration, task runs and artifacts stay in the manifest's
    text."""
    left_out = {
        "artifacts",
        "config",
        "cost",
        "diagnostics",
        "inspect",
        "models",
        "ratings",
        "requests",
        "saved",
        "steps",
        "task_runs",
        "tokens",
    }
    shown = {**manifest, "started": numbers.moment(manifest.get("started"))}
    return [row for key, value in shown.items() if key not in left_out for row in flat(key, value)]


def flat(name: str, value: Any) -> list[tuple[str, str]]:
    """A nested value as rows of a name ("versions · numpy") and a text."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        return [row for key, entry in value.items() for row in flat(f"{name} · {key}", entry)]
    if isinstance(value, list | tuple) and all(isinstance(entry, str | int | float) for entry in value):
        return [(name, ", ".join(map(str, value)))] if value else []
    if isinstance(value, list | tuple):
        return [row for index, entry in enumerate(value) for row in flat(f"{name} · {index}", entry)]
    if isinstance(value, float):
        return [(name, f"{value:,.6g}")]
    if isinstance(value, int) and not isinstance(value, bool) and "seed" not in name:
        return [(name, numbers.count(value))]
    return [(name, str(value))]


def benchmark_name(manifest: Mapping[str, Any], rows: Sequence[ResultRow]) -> str:
    """The benchmark's name, or the names of several."""
    names = dict.fromkeys(row.benchmark for row in rows)
    return ", ".join(names) or str(manifest.get("benchmark") or "Evaluation")


def example_link(example: Example) -> str:
    """The address, within the page, of one sample."""
    return _samples_link(item=example.item_id, **_facet_query(example.model_name, example.prompt_template))


def _requests_fact(requests: Any) -> Fact | None:
    if not isinstance(requests, Mapping):
        return None
    return Fact("answers", asked_and_reused(requests))


def _says_more(rows: Sequence[ResultRow]) -> bool:
    """Whether the table of results says what no plot shows: a failure, a note, unscored samples."""
    return any(row.status == "failed" or row.error or row.n_unscored for row in rows)


def _optional_columns(rows: Sequence[ResultRow]) -> frozenset[str]:
    """Columns that tell rows apart; the others would say the same on every line."""
    values_of: dict[str, set[Any]] = {
        "benchmark": {row.benchmark for row in rows},
        "prompt_template": {row.prompt_template for row in rows},
        "label": {row.label for row in rows},
        "n_samples": {row.n_samples - row.n_items for row in rows} | {0},
        "mde": {row.mde for row in rows} | {None},
        "note": {row.error for row in rows if row.status != "failed"} | {None},
    }
    return frozenset(name for name, values in values_of.items() if len(values) > 1)


def _pivot_record(row: ResultRow) -> dict[str, Any]:
    """A row as the facet table of the page reads it."""
    own = zip(OWN_FACETS, (row.model_name, row.prompt_template), strict=True)
    facets = {**dict(own), **facet_texts(row.other_facets)}
    return {
        "name": f"{row.result_name}, {row.filter}",
        "facets": {name: facet_words(text) for name, text in facets.items() if text is not None},
        "value": row.value,
        "text": numbers.value_with_error(row.value, row.stderr),
        "items": row.n_items,
        "higher": row.higher_is_better,
    }


def _command(manifest: Mapping[str, Any]) -> list[str]:
    command = manifest.get("command")
    return list(map(str, command)) if isinstance(command, list) else ["python", "-m", "flows.eval"]


def _facet_query(model: str | None, prompt: str | None) -> dict[str, str]:
    named = zip(OWN_FACETS, (model, prompt), strict=True)
    return {f"f.{name}": value for name, value in named if value}


def _samples_link(**query: str) -> str:
    return f"#samples?{urlencode(query)}"
