"""``comparison.html``: one self-contained page about two runs: differences with intervals, settings that
differ, samples side by side.

The numbers come from ``tasks.comparison`` (``compared_pairs`` turns them into rows). A run is read from
its output folder, so that comparing needs neither the store nor the run itself: ``responses.jsonl`` holds
one line a sample, ``samples_<benchmark>.jsonl`` one line an item × filter, ``evaluation_results.jsonl`` one
line a sample × label of an evaluation method, all in stretches of lines of one model, prompt template and
partition. A first pass notes where these stretches begin; then the files are read in as many places at once
as there are filters and methods, so that one item at a time is in memory.

Samples are joined here, so that neither run is ever in memory: only numbers are kept, some hundred bytes
a sample and no text. A model or prompt that is the only one in each run is what the runs are about (two
checkpoints, two prompts) and does not hold their samples apart.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlencode

import orjson
import pyarrow.parquet as pq

from metrics.errors import DataError
from metrics.statistics.gate import Verdict
from tasks.comparison.compare import ComparedPair, ComparedRuns
from tasks.comparison.matching import DEFAULT_REDUCTION
from tasks.comparison.runs import changes, cost_changes
from tasks.reduction.facets import facet_words
from tasks.reporting import numbers
from tasks.reporting.context import flat, names_shown, run_line
from tasks.reporting.page import isolated, packed_element, page_parts
from tasks.reporting.plots import Axis, Forest, forest_row, limited
from tasks.reporting.report import PageLimits, write_samples
from tasks.reporting.view import (
    ARROWS,
    MEANING,
    OWN_FACETS,
    LabelView,
    ResponseView,
    RunView,
    SampleView,
    item_facets,
    mean_of_scored,
    result_rows,
    short_run_name,
)
from tasks.store.home import finite, whole_text
from tasks.store.outputs import EVALUATION_RESULTS, RESPONSES, samples_file
from tasks.verdicts.rows import is_scored

JsonObject = dict[str, Any]
SamplePlace = tuple[str | None, str | None, str | None]  # model, prompt template, filter or evaluation method
Segments = dict[SamplePlace, list[tuple[int, int]]]  # byte ranges, in order


def folder_view(folder: str | Path) -> RunView:
    """The run that was exported to ``folder``.

    Raises DataError where results.parquet, manifest.json, responses.jsonl or a log of scores is missing or a
    line is no JSON object.
    """
    folder = Path(folder)
    _refuse_without(folder, ["results.parquet", "manifest.json", RESPONSES])
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    results = pq.read_table(folder / "results.parquet")
    rows = results.select(["benchmark", "label", "value"]).to_pylist()
    scored = [row for row in rows if row["value"] is not None]
    logs = (EVALUATION_RESULTS if row["label"] else samples_file(row["benchmark"]) for row in scored)
    _refuse_without(folder, list(dict.fromkeys(logs)))
    return RunView(
        manifest=manifest,
        results=results,
        samples=partial(_samples, folder, (manifest.get("config") or {}).get("facets") or ()),
    )


def _refuse_without(folder: Path, names: Sequence[str]) -> None:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise DataError(f"{folder} is not the folder of a published run: it lacks {', '.join(missing)}")


def _samples(folder: Path, facets: Sequence[str]) -> Iterator[SampleView]:
    responses = folder / RESPONSES
    logs = {path: _segments(path) for path in sorted(folder.glob("samples_*.jsonl"))}
    verdicts = folder / EVALUATION_RESULTS
    methods = _segments(verdicts) if verdicts.is_file() else {}
    for (model, prompt, _), ranges in _segments(responses).items():
        filters: defaultdict[str, list[Iterator[JsonObject]]] = defaultdict(list)
        for path, segments in logs.items():
            for (own_model, own_prompt, name), places in segments.items():
                if own_model in (model, None) and own_prompt in (prompt, None):
                    filters[name or "none"].append(_lines(path, places))
        streams = {name: _LinesByItem(chain.from_iterable(sources)) for name, sources in filters.items()}
        judged = [
            _LinesByItem(_lines(verdicts, places))
            for (own_model, own_prompt, _), places in methods.items()
            if (own_model, own_prompt) == (model, prompt)
        ]
        for item_id, rows in groupby(_lines(responses, ranges), key=lambda row: row["item_id"]):
            logged = {name: stream.take(item_id) for name, stream in streams.items()}
            said = [line for stream in judged for line in stream.take_all(item_id)]
            yield _sample(list(rows), logged, said, facets)


def _segments(path: Path) -> Segments:
    """Byte ranges of the lines of each place, neighbours joined."""
    found: Segments = {}
    for start, end, line in _positions(path):
        method = ((line.get("metadata") or {}).get("evaluation_method") or {}).get("name")
        place = (line.get("model_name"), line.get("prompt_template"), line.get("filter", method))
        ranges = found.setdefault(place, [])
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((start, end))
    return found


def _positions(path: Path) -> Iterator[tuple[int, int, JsonObject]]:
    start = 0
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            try:
                line = orjson.loads(text)
            except orjson.JSONDecodeError as error:
                raise DataError(f"{path}:{number}: no JSON object: {error}; export the run again") from error
            yield start, start + len(text), line
            start += len(text)


def _lines(path: Path, ranges: list[tuple[int, int]]) -> Iterator[JsonObject]:
    with path.open("rb") as file:
        for start, end in ranges:
            file.seek(start)
            while file.tell() < end:
                yield orjson.loads(file.readline())


class _LinesByItem:
    """Lines in the order of the items, handed out by item; an item that a filter lacks takes nothing."""

    def __init__(self, lines: Iterator[JsonObject]) -> None:
        self._lines = lines
        self._next = next(lines, None)

    def take(self, item_id: str) -> JsonObject | None:
        line = self._next
        if line is None or line["item_id"] != item_id:
            return None
        self._next = next(self._lines, None)
        return line

    def take_all(self, item_id: str) -> Iterator[JsonObject]:
        while (line := self.take(item_id)) is not None:
            yield line


def _sample(
    rows: list[JsonObject],
    logged: Mapping[str, JsonObject | None],
    judged: Sequence[JsonObject],
    facets: Sequence[str],
) -> SampleView:
    first = rows[0]
    lines = {name: line for name, line in logged.items() if line is not None}
    line: JsonObject = next(iter(lines.values()), {})
    target, prompt = line.get("target"), first["prompt"]
    likelihoods = _likelihoods(line, len(rows))
    return SampleView(
        item_id=first["item_id"],
        model_name=first["model_name"],
        prompt_template=first["prompt_template"],
        prompt=_prompt(prompt),
        chat=not isinstance(prompt, str),
        references=target if isinstance(target, list) else [] if target is None else [target],
        responses=[_response(row, prompt, lls) for row, lls in zip(rows, likelihoods, strict=True)],
        filters={name: _predictions(line["filtered_resps"]) for name, line in lines.items()},
        scores={
            f"{metric},{name}": line.get(f"{metric}_repeats", [line.get(metric)])
            for name, line in lines.items()
            for metric in line["metrics"]
        },
        choices=[_choice(arguments) for arguments in (line.get("arguments") or {}).values()]
        if any(likelihoods)
        else [],
        item_digest=line.get("doc_hash"),
        facets=item_facets(_item(line, judged), first.get("metadata") or {}, facets),
        labels=[_label(row) for row in judged],
        doc_id=line["doc_id"] if isinstance(line.get("doc_id"), int) else None,
    )


def _item(line: JsonObject, judged: Sequence[JsonObject]) -> JsonObject:
    """The item's own fields, which either file holds."""
    return line.get("doc") or (judged[0].get("item") if judged else None) or {}


def _label(row: JsonObject) -> LabelView:
    metadata = row.get("metadata") or {}
    said = {
        "custom_fields": metadata.get("custom_fields"),
        "detailed_results": row.get("detailed_results"),
        "error": row["error"],
    }
    details = {name: value for name, value in said.items() if value}
    return LabelView(
        label=row["label"],
        sample_index=row["sample_index"],
        passed=row["passed"],
        score=row["score"],
        status="ok" if is_scored(row) else "unscored",
        details=details,
        method=(metadata.get("evaluation_method") or {}).get("name") or "",
    )


def _prompt(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)


def _response(row: JsonObject, asked: Any, likelihoods: list[float]) -> ResponseView:
    """``asked`` is what the sample shows as its prompt: another repeat may end another conversation."""
    return ResponseView(
        text=row["response"],
        status=row["status"],
        error=row["error"],
        finish_reason=(row.get("metadata") or {}).get("finish_reason"),
        reasoning=row.get("reasoning"),
        tool_calls=row.get("tool_calls") or (),
        transcript=None if row["prompt"] == asked else _prompt(row["prompt"]),
        prompt_tokens=row.get("prompt_tokens"),
        completion_tokens=row.get("completion_tokens"),
        seconds=row.get("inference_time"),
        lls=likelihoods,
    )


def _likelihoods(line: JsonObject, n: int) -> list[list[float]]:
    """Log-likelihoods of each of n samples, one a choice; empty lists where responses are texts."""
    requests = line.get("resps") or []
    texts = any(not isinstance(answer, list) for request in requests for answer in request)
    if texts or not requests:
        return [[] for _ in range(n)]
    return [[float(request[sample][0]) for request in requests] for sample in range(n)]


def _predictions(filtered: list[Any]) -> list[Any]:
    """``filtered_resps`` as one prediction a sample: several samples are one list in a list."""
    return filtered[0] if len(filtered) == 1 and isinstance(filtered[0], list) else filtered


def _choice(arguments: Mapping[str, Any]) -> str:
    return str(arguments.get("arg_1", arguments.get("arg_0", ""))).strip()


SampleKey = tuple[str, str, str]
ScoredBy = tuple[Literal["pair", "label"], str]
Means = Mapping[ScoredBy, float | None]


@dataclass
class ScannedRun:
    """The samples of one run as keys, places and mean scores by pair and by label, by position."""

    keys: list[SampleKey] = field(default_factory=list)
    places: list[Mapping[str, str]] = field(default_factory=list)
    means: list[Means] = field(default_factory=list)
    failed: list[bool] = field(default_factory=list)
    responses: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, samples: Iterable[SampleView]) -> "ScannedRun":
        """One pass over a run's samples."""
        run = cls()
        for sample in samples:
            item = sample.item_digest or sample.item_id
            run.keys.append((item, sample.model_name, sample.prompt_template))
            run.places.append(sample.places)
            by_pair = {pair: mean_of_scored(scores) for pair, scores in sample.scores.items()}
            run.means.append(
                {("pair", pair): mean for pair, mean in by_pair.items()}
                | {("label", label): mean for label, mean in sample.label_means.items()}
            )
            run.failed.append(sample.failed)
            run.responses.append(max(1, len(sample.responses)))
        return run


@dataclass(frozen=True)
class PairedSample:
    """Positions of one sample in both runs, None where a run lacks it; did a score or label change?"""

    base: int | None
    candidate: int | None
    flipped: bool


def pair_samples(base: ScannedRun, candidate: ScannedRun) -> list[PairedSample]:
    """All samples of both runs, paired by item, and by model and prompt where a run has several.

    The n-th copy of an item meets the n-th copy. Samples of one run alone come last.
    """
    apart = [len({key[part] for key in run.keys}) > 1 for part in (1, 2) for run in (base, candidate)]
    by_model, by_prompt = apart[0] or apart[1], apart[2] or apart[3]

    def shared(key: SampleKey) -> SampleKey:
        return key[0], key[1] if by_model else "", key[2] if by_prompt else ""

    decisive = _decisive(base, candidate)
    waiting: defaultdict[SampleKey, list[int]] = defaultdict(list)
    for position, key in enumerate(candidate.keys):
        waiting[shared(key)].append(position)
    paired = []
    for position, key in enumerate(base.keys):
        partners = waiting.get(shared(key))
        partner = partners.pop(0) if partners else None
        paired.append(
            PairedSample(
                position,
                partner,
                partner is not None and _flipped(base.means[position], candidate.means[partner], decisive),
            )
        )
    alone = sorted(position for positions in waiting.values() for position in positions)
    return paired + [PairedSample(None, position, False) for position in alone]


def choose_pairs(
    pairs: list[PairedSample], base: ScannedRun, candidate: ScannedRun, limits: PageLimits
) -> tuple[list[PairedSample], str | None]:
    """The pairs that a page shows, in order, and in words what is left out (None: nothing).

    Beyond the limit: all that flipped or failed in a run, and a seeded draw from the others.
    """
    sizes = [_size(pair, base, candidate) for pair in pairs]
    if sum(sizes) <= limits.samples:
        return pairs, None

    def certain(pair: PairedSample) -> bool:
        failed = pair.base is not None and base.failed[pair.base]
        return pair.flipped or failed or (pair.candidate is not None and candidate.failed[pair.candidate])

    chosen = {index for index, pair in enumerate(pairs) if certain(pair)}
    n_certain, shown = len(chosen), sum(sizes[index] for index in chosen)
    others = (index for index in range(len(pairs)) if index not in chosen)
    for index in sorted(others, key=lambda index: _draw(limits.seed, pairs[index], base, candidate)):
        if shown + sizes[index] > limits.samples:
            break
        chosen.add(index)
        shown += sizes[index]
    statement = (
        f"{numbers.count(len(chosen))} of {numbers.plural(len(pairs), 'pair')} of samples can be looked "
        f"through here: all {numbers.count(n_certain)} that changed or failed, and a random choice of the "
        f"others (seed {limits.seed}). Differences and counts are those of all samples."
    )
    return [pairs[index] for index in sorted(chosen)], statement


def shown_counts(
    shown: Sequence[PairedSample], base: ScannedRun, candidate: ScannedRun
) -> Callable[["PairView", str], int]:
    """How many samples the page shows as a row's "better" or "worse" ones."""
    known: dict[tuple[str, ...], Counter[tuple[Any, ...]]] = {}

    def moved(facets: Iterable[str]) -> Iterator[tuple[Any, ...]]:
        for pair in shown:
            if pair.base is None or pair.candidate is None:
                continue
            before, after = base.means[pair.base], candidate.means[pair.candidate]
            place = tuple(map(base.places[pair.base].get, facets))
            for of in before.keys() & after.keys():
                old, new = before[of], after[of]
                if old is not None and new is not None and old != new:
                    yield of, new > old, *place

    def count(row: "PairView", outcome: str) -> int:
        facets = tuple(row.facets)
        if facets not in known:
            known[facets] = Counter(moved(facets))
        of: ScoredBy = ("pair", row.name) if row.label is None else ("label", row.label)
        higher = (outcome == "better") == (row.label is not None or row.items_better_up)
        return known[facets][of, higher, *row.facets.values()]

    return count


def _decisive(base: ScannedRun, candidate: ScannedRun) -> set[ScoredBy]:
    """The pairs and labels whose change is a flip: those with scores from 0 to 1 only, or all if there are
    none.

    Every BLEU moves a little when a response does; that says nothing.
    """
    known: set[ScoredBy] = set()
    beyond: set[ScoredBy] = set()
    for means in chain(base.means, candidate.means):
        known |= means.keys()
        beyond |= {one for one, mean in means.items() if mean is not None and not 0 <= mean <= 1}
    return known - beyond or known


def _flipped(before: Means, after: Means, decisive: set[ScoredBy]) -> bool:
    return any(before[one] != after[one] for one in before.keys() & after.keys() & decisive)


def _size(pair: PairedSample, base: ScannedRun, candidate: ScannedRun) -> int:
    return (0 if pair.base is None else base.responses[pair.base]) + (
        0 if pair.candidate is None else candidate.responses[pair.candidate]
    )


def _draw(seed: int, pair: PairedSample, base: ScannedRun, candidate: ScannedRun) -> bytes:
    key = base.keys[pair.base] if pair.base is not None else candidate.keys[pair.candidate or 0]
    name = "\0".join((str(seed), *key))
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()


SCRIPTS: Final = (
    "dom.js",
    "unpack.js",
    "search.js",
    "sample.js",
    "diff.js",
    "browser.js",
    "page.js",
    "compare.js",
)
TEXT_SHOWN: Final = 400  # characters of a setting that differs
MODELS_NAMED: Final = 3


@dataclass(frozen=True)
class PairView:
    """One number of both runs, compared on the items that both have scored, or as two samples of items.

    ``name`` is "metric,filter" or "reduction(metric),filter", ``group`` the facet group in words ("" if there
    is only one). ``difference`` is candidate minus base in the metric's own units, with its confidence
    interval; ``p_adjusted`` is corrected over all pairs. ``wins``, ``losses`` and ``ties`` count items on
    which the candidate is better, worse and equal, ``n_items`` all compared ones; ``missing`` items of the
    base are not scored in the candidate. ``mde`` is the smallest difference that these items could have
    shown. ``items_better_up``: an item is better when its own number is higher. None: not known, not asked
    for.
    """

    name: str
    base: float | None
    candidate: float | None
    difference: float | None
    ci_low: float | None = None
    ci_high: float | None = None
    p_value: float | None = None
    p_adjusted: float | None = None
    wins: int = 0
    losses: int = 0
    ties: int = 0
    n_items: int = 0
    missing: int = 0
    mde: float | None = None
    margin: float | None = None
    verdict: Verdict | None = None
    higher_is_better: bool | None = True
    method: str | None = None
    note: str | None = None
    label: str | None = None
    group: str = ""
    items_better_up: bool = True
    facets: Mapping[str, str] = field(default_factory=dict)
    """Of the group, those that tell groups apart."""
    paired: bool = True
    """Whether the difference is of the items that both runs have, and not of two samples of items."""
    by_mean: bool = True
    """Whether items are better or worse by what the page compares samples by: their mean score, or how often
    they passed. Other reductions and metrics count otherwise."""

    def samples(self, outcome: str) -> str:
        """The address, within the page, of the pair's samples of the group that came out so."""
        scored_by = {"pair": self.name} if self.label is None else {"label": self.label}
        chosen = {f"f.{name}": value for name, value in self.facets.items()}
        return f"#samples?{urlencode({**scored_by, 'outcome': outcome, **chosen})}"

    @property
    def arrow(self) -> str:
        """Which way is better."""
        return ARROWS[self.higher_is_better]


@dataclass(frozen=True)
class WrittenComparison:
    """Where the page is, and how many pairs of samples it shows of how many."""

    path: Path
    n_pairs: int
    n_shown: int


def write_compare_report(
    base: RunView,
    candidate: RunView,
    compared: Sequence[PairView],
    path: str | Path,
    *,
    verdict: Verdict | None = None,
    names: tuple[str, str] = ("base", "candidate"),
    limits: PageLimits | None = None,
) -> WrittenComparison:
    """Writes the page to ``path``; the file appears when it is complete.

    ``names`` are what the runs are called on the page, ``verdict`` the gate's over all pairs. Four streaming
    passes, two a run. Beyond ``limits.samples`` the page holds all pairs of samples that changed or failed
    and a seeded choice of the others, and says so. Raises FileUnwritable.
    """
    limits = limits or PageLimits()
    scanned = ScannedRun.of(base.samples()), ScannedRun.of(candidate.samples())
    pairs = pair_samples(*scanned)
    shown, statement = choose_pairs(pairs, *scanned, limits)
    called = names_shown(row for view in (base, candidate) for row in result_rows(view.results))
    context = {
        **_head(base, candidate, names),
        "names_shown": called,
        "verdict": verdict,
        "compared": compared,
        "shown_counts": shown_counts(shown, *scanned),
        "plots": differences(compared),
        "n_flipped": sum(pair.flipped for pair in pairs),
        "n_pairs": sum(pair.base is not None and pair.candidate is not None for pair in pairs),
        "n_alone": sum(pair.base is None or pair.candidate is None for pair in pairs),
        "settings": differing_settings(base.manifest, candidate.manifest),
        "versions": differing_versions(base.manifest, candidate.manifest),
        "costs": cost_changes(base.manifest, candidate.manifest),
        "statement": statement,
        "page_json": {
            "names": [isolated(name, called) for name in names],
            "lower_is_better": [pair.name for pair in compared if not pair.items_better_up],
        },
    }
    before, after = page_parts("compare.html", context, SCRIPTS)
    path = Path(path)
    half = PageLimits(limits.samples, limits.file_bytes // 2, limits.text_bytes // 2, limits.seed)
    with whole_text(path) as file:
        file.write(before)
        rows = {}
        for side, view in (("base", base), ("candidate", candidate)):
            chosen = sorted(at for pair in shown if (at := getattr(pair, side)) is not None)
            write_samples(file, side, view.at(chosen), None, view, half)
            rows[side] = {position: row for row, position in enumerate(chosen)}
        paired = {
            side: [rows[side].get(getattr(pair, side), -1) for pair in shown]
            for side in ("base", "candidate")
        }
        file.write(packed_element("paired", paired))
        file.write(after)
    return WrittenComparison(path, len(pairs), len(shown))


def run_names(base: RunView, candidate: RunView, folders: tuple[str, str]) -> tuple[str, str]:
    """What the two runs are called on the page: their models where they have different ones, else the names
    that they were given, else their models with when they began, else folders. No digest stands alone."""
    views = base, candidate
    models = [_models(view) for view in views]
    if all(models) and models[0] != models[1]:
        return models[0], models[1]
    names = [str(view.manifest.get("run_name") or "") for view in views]
    if all(names) and names[0] != names[1] and all(short_run_name(name) == name for name in names):
        return names[0], names[1]
    begun = [view.manifest.get("started") for view in views]
    for seconds in (False, True):
        when = [numbers.moment(each, seconds=seconds) for each in begun]
        if all(when) and when[0] != when[1]:
            first, second = (" · ".join(filter(None, own)) for own in zip(models, when, strict=True))
            return first, second
    short = [short_run_name(name) for name in names]
    if all(short) and all(models) and short[0] != short[1]:
        return f"{models[0]} · {short[0]}", f"{models[1]} · {short[1]}"
    return folders


def _models(view: RunView) -> str:
    """The models of a run, three at most by name."""
    names = sorted(filter(None, set(view.results.column("model_name").to_pylist())))
    shown = names if len(names) <= MODELS_NAMED else names[: MODELS_NAMED - 1]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def compared_pairs(compared: ComparedRuns, pass_rates: Collection[str] = ()) -> list[PairView]:
    """One row a compared group, named apart by whatever facets hold groups of a pair apart; ``pass_rates``
    names the metrics that say how often a label passed."""
    keys = [pair.key for pair in compared.pairs]
    names = {name for key in keys for name, _ in key.facets}
    facets = {name for name in names if len({key.facet(name) for key in keys}) > 1}
    return [_pair(pair, facets, pass_rates) for pair in compared.pairs]


def pass_rates(*views: RunView) -> frozenset[str]:
    """The names of the runs' metrics that say how often a label passed."""
    configs = [view.manifest.get("config") or {} for view in views]
    metrics = [metric for config in configs for metric in config.get("metrics") or ()]
    return frozenset(metric["name"] for metric in metrics if metric.get("type") == "pass_rate")


def differences(compared: Sequence[PairView]) -> list[Forest]:
    """Forest plots of the differences around zero: one for all scores that are shares, one for each other
    metric."""
    panels: dict[str, list[PairView]] = {}
    others = {pair.name for pair in compared if not _is_share(pair)}
    for pair in compared:
        if pair.difference is not None:
            panels.setdefault(pair.name if pair.name in others else "", []).append(pair)
    return [_difference_plot(name, group) for name, group in panels.items()]


def _is_share(pair: PairView) -> bool:
    """Whether a row may be of a share that is better when it is larger: no group of other metrics may be
    among them because both of its values are small."""
    scores = [score for score in (pair.base, pair.candidate) if score is not None]
    ends = [end for end in (pair.ci_low, pair.ci_high) if end is not None]
    within = all(0 <= score <= 1 for score in scores) and all(-1 <= end <= 1 for end in ends)
    return within and bool(pair.higher_is_better)


def differing_settings(base: Mapping[str, Any], candidate: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, base's and candidate's value of every setting that differs: what was asked, of whom, and how it
    was scored. What a run took, and versions, are no settings."""
    rows: list[tuple[str, str, str]] = []
    for change in changes(base, candidate):
        sides = [
            dict(flat(change.what, (run.get("config") or {}).get(change.what))) for run in (base, candidate)
        ]
        if change.kind == "version":
            continue
        if change.kind == "dataset" or not any(sides):  # where a file of the same name has other items, too
            rows.append((change.what, change.base or numbers.MISSING, change.candidate or numbers.MISSING))
        else:
            rows += _unlike(*sides)
    return rows


def differing_versions(base: Mapping[str, Any], candidate: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """As ``differing_settings``, for the versions of the program and of what it is made with."""
    found = (change for change in changes(base, candidate) if change.kind == "version")
    return [(one.what, one.base or numbers.MISSING, one.candidate or numbers.MISSING) for one in found]


def _unlike(base: Mapping[str, str], candidate: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name in dict.fromkeys([*base, *candidate]):
        old, new = base.get(name, numbers.MISSING), candidate.get(name, numbers.MISSING)
        if old != new:
            yield name, old[:TEXT_SHOWN], new[:TEXT_SHOWN]


def _difference_plot(name: str, pairs: Sequence[PairView]) -> Forest:
    ends = [end for pair in pairs for end in (pair.difference, pair.ci_low, pair.ci_high) if end is not None]
    axis = Axis.around([0.0, *ends], shares=False)
    first = pairs[0]
    rows = (
        forest_row(
            " · ".join(filter(None, ("" if name else pair.name, pair.group))) or "all",
            (pair.difference or 0.0, pair.ci_low, pair.ci_high),
            numbers.signed(pair.difference, like=pair.base),
            axis,
        )
        for pair in pairs
    )
    direction = MEANING[first.higher_is_better]
    plot = Forest(
        title=name or "Shares",
        filter="candidate minus base",
        direction=f"{first.arrow} {direction}".strip(),
        axis=axis,
        rows=tuple(rows),
        zero=axis.at(0.0),
    )
    return limited(plot, [abs(pair.difference or 0.0) for pair in pairs], "largest")


def _head(base: RunView, candidate: RunView, names: tuple[str, str]) -> dict[str, Any]:
    """The title, and which runs these are."""
    benchmarks = dict.fromkeys(
        name for view in (base, candidate) for name in view.results.column("benchmark").to_pylist()
    )
    return {
        "title": ", ".join(benchmarks) or "Comparison",
        "names": names,
        "run_ids": " ".join(str(view.manifest.get("run_id") or "") for view in (base, candidate)),
        "runs": [run_line(view.manifest) for view in (base, candidate)],
        "manifests": [
            json.dumps(view.manifest, indent=2, ensure_ascii=False, default=str) for view in (base, candidate)
        ],
    }


def _models_first(facet: tuple[str, str]) -> bool:
    """Orders facets as the report does: model and prompt, then the config's own."""
    return facet[0] not in OWN_FACETS


def _pair(pair: ComparedPair, facets: set[str], pass_rates: Collection[str]) -> PairView:
    key, found, joined, terms = pair.key, pair.comparison, pair.joined, pair.terms
    group = " · ".join(
        [
            *([key.label] if key.label else []),
            *(facet_words(value) for name, value in sorted(key.facets, key=_models_first) if name in facets),
        ]
    )
    named = {name: value for name, value in key.facets if name in facets}
    if found is None:
        return PairView(key.pair, None, None, None, verdict=pair.verdict, note=pair.reason, group=group)
    return PairView(
        name=key.pair,
        base=finite(found.base),
        candidate=finite(found.candidate),
        difference=finite(found.difference),
        ci_low=finite(found.ci_low),
        ci_high=finite(found.ci_high),
        p_value=finite(found.p_value),
        p_adjusted=finite(pair.p_adjusted),
        wins=found.wins,
        losses=found.losses,
        ties=found.ties,
        n_items=found.n_items,
        missing=joined.missing + joined.unscored if joined is not None and pair.paired else 0,
        mde=finite(found.mde),
        margin=terms.margin if terms is not None else None,
        verdict=pair.verdict,
        higher_is_better=pair.higher_is_better,
        method=found.test,
        note=pair.reason or found.warning,
        label=key.label,
        group=group,
        items_better_up=pair.items_better_up,
        facets=named,
        paired=pair.paired,
        by_mean=key.reduction == DEFAULT_REDUCTION and (key.label is None or key.metric in pass_rates),
    )
