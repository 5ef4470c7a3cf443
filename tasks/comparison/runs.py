"""What may stand on a side of a comparison, a run, a night, or several nights as one baseline; and what
changed between two sides beside their scores.

A run comes from its output folder or from the store's history. A night's evaluations become one run, so
that one gate and one correction go over all of them; several nights become each item's mean.

``changes`` lists what besides chance may explain a difference, above all that another model answered;
those that cast doubt on the comparison come first. ``cost_changes`` says what each model cost in either
run: answers that were reused count at what they cost when they were asked for, otherwise whichever run
came second would look cheap. ``compare_runs`` asks once for each group of items whether answers were cut
off, empty or refused more often: a score may stay where it was while a model stops answering, so that a
rise is told beside the pairs, tested item by item like them.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from metrics.aggregation import build_aggregation
from metrics.aliases import nearest
from metrics.config import StatisticsConfig
from metrics.errors import NightjarError
from metrics.statistics.comparison import compare_items
from metrics.statistics.differences import ItemColumn
from metrics.statistics.gate import adjust
from tasks.comparison.matching import (
    ComparisonError,
    GroupKey,
    ItemGroup,
    Match,
    counterparts,
    groups_in,
    join,
    match_runs,
    read_groups,
    result_key,
    row_keys,
    shared_clusters,
)
from tasks.comparison.stopping import Stopping
from tasks.history.layout import ITEMS, HistoryError, find_manifest, known_runs
from tasks.history.nights import Night, NightEvaluation
from tasks.history.query import open_rows, read_rows
from tasks.models.registry import is_recorded
from tasks.reduction.facets import facets_text, parse_facets
from tasks.rows.parts import UNKNOWN
from tasks.store.errors import FileDamaged, FileMissing
from tasks.store.schemas import CELL_FACETS, COUNTED
from tasks.store.storage import Store

ChangeKind = Literal["model identity", "dataset", "scoring", "setting", "version"]

NOT_SETTINGS: Final = frozenset(
    {"base_dir", "config_file", "models", "limits", "prices", "errors", "answers", "canaries"}
)
"""Parts of a config that can't move a score, whether answers are asked for again, and models, which are
distinguished by what they serve."""
SCORING: Final = frozenset(
    {
        "filter_list",
        "metric_list",
        "process_results",
        "scorer",
        "evaluation_methods",
        "metrics",
        "choices_by",
        "cut_off",
    }
)
"""What decides how a score comes about, whatever the model answers."""
CHOICE: Final = ("limit", "samples", "shuffle")
"""Which of the items were asked, as the command line chose them."""
MAPPINGS: Final = ("config", "models", "versions")
"""Parts of a manifest that are looked into by name."""
SHOWN: Final = 120
"""Characters of a value that is shown."""


@dataclass(frozen=True)
class Change:
    """One thing that is not the same in both runs; None: that run does not say."""

    kind: ChangeKind
    what: str
    base: str | None
    candidate: str | None


def changes(base: Mapping[str, Any], candidate: Mapping[str, Any]) -> list[Change]:
    """Differences of two manifests, those that cast doubt on a comparison first; none for a run without
    manifest."""
    if not base or not candidate:
        return []
    return [
        *_identities(base.get("models") or {}, candidate.get("models") or {}),
        *_differences(
            "dataset", {"dataset": base.get("dataset_digest")}, {"dataset": candidate.get("dataset_digest")}
        ),
        *_settings(base.get("config") or {}, candidate.get("config") or {}),
        *_differences("setting", *({name: side.get(name) for name in CHOICE} for side in (base, candidate))),
        *_differences("version", base.get("versions") or {}, candidate.get("versions") or {}),
        *_differences(
            "version",
            {"git revision": base.get("git_revision")},
            {"git revision": candidate.get("git_revision")},
        ),
    ]


def _identities(base: Mapping[str, Any], candidate: Mapping[str, Any]) -> Iterator[Change]:
    """Models of the same name; where each run has one model alone, those two."""
    pairs = [(name, base[name], candidate[name]) for name in base if name in candidate]
    if not pairs and len(base) == len(candidate) == 1:
        (before, first), (after, second) = *base.items(), *candidate.items()
        pairs = [(f"{before} → {after}", first, second)]
    for name, first, second in pairs:
        own = first.get("identity") or {}, second.get("identity") or {}
        for part in sorted({*own[0], *own[1]}):
            yield from _difference("model identity", f"{name}: {part}", own[0].get(part), own[1].get(part))
        served = _served(first), _served(second)
        if all(served):  # a run that took everything from the cache has asked nobody
            yield from _difference("model identity", f"{name}: as served", *served)
        says = [(model.get("served") or {}).get("says") or {} for model in (first, second)]
        for fact in sorted({*says[0], *says[1]} if all(says) else ()):
            values = says[0].get(fact), says[1].get(fact)
            yield from _difference("model identity", f"{name}: {fact}", *values)
        prints = sorted(first.get("fingerprints") or ()), sorted(second.get("fingerprints") or ())
        if all(prints):
            yield from _difference("model identity", f"{name}: system_fingerprint", *prints)


def _served(model: Mapping[str, Any]) -> list[str]:
    """What the endpoint says it serves and what its answers say, without the address, which is the
    identity's."""
    served = model.get("served")
    if not isinstance(served, Mapping):
        return []
    if "base_url" in served or "model" in served:
        return sorted(map(str, served.get("served") or ()))
    return sorted(map(str, served))


def _settings(base: Mapping[str, Any], candidate: Mapping[str, Any]) -> Iterator[Change]:
    for name in sorted({*base, *candidate} - NOT_SETTINGS):
        kind: ChangeKind = "scoring" if name in SCORING else "setting"
        yield from _difference(kind, name, base.get(name), candidate.get(name))


def _differences(kind: ChangeKind, base: Mapping[str, Any], candidate: Mapping[str, Any]) -> Iterator[Change]:
    for name in sorted({*base, *candidate}):
        yield from _difference(kind, name, base.get(name), candidate.get(name))


def _difference(kind: ChangeKind, what: str, base: Any, candidate: Any) -> Iterator[Change]:
    if base != candidate and not (base in (None, [], {}) and candidate in (None, [], {})):
        yield Change(kind, what, _shown(base), _shown(candidate))


def _shown(value: Any) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


STAGES: Final[Mapping[str, str]] = {"models": "answering", "judges": "judging"}
"""Where a manifest keeps its accounts, and which stage they are of."""


@dataclass(frozen=True)
class CostChange:
    """What a model cost in both runs at one stage ("answering", "judging"); None: it is not in that run.

    ``currency`` is the candidate's, None where no prices name one.
    """

    model: str
    stage: str
    base: float | None
    candidate: float | None
    currency: str | None


def costs(manifest: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """Model and stage → what its answers cost, reused ones too; empty where no price is known."""
    found: dict[tuple[str, str], float] = {}
    for key, stage in STAGES.items():
        accounts = manifest.get(key)
        for model, account in accounts.items() if isinstance(accounts, Mapping) else ():
            if isinstance(account, Mapping):
                found[str(model), stage] = (account.get("cost") or 0.0) + (account.get("saved_cost") or 0.0)
    left_out = unpriced(manifest)
    priced = {place: cost for place, cost in found.items() if place[0] not in left_out}
    return priced if any(priced.values()) else {}


def unpriced(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """The models and judges that used tokens and that ``prices`` does not name: a total leaves them out.

    Empty where nothing has a price, for then there is no total.
    """
    prices = (manifest.get("config") or {}).get("prices") or {}
    if not set(prices) - {"currency"}:
        return ()
    used = ("prompt_tokens", "completion_tokens", "saved_tokens")
    named = {
        str(model)
        for key in STAGES
        for model, account in (manifest.get(key) or {}).items()
        if isinstance(account, Mapping) and any(account.get(name) for name in used)
    }
    return tuple(sorted(named - set(prices)))


def cost_changes(base: Mapping[str, Any], candidate: Mapping[str, Any]) -> list[CostChange]:
    """Both runs' costs side by side; none where no price is known, or the runs have different currencies."""
    currencies = [manifest.get("currency") for manifest in (base, candidate)]
    before, after = costs(base), costs(candidate)
    if None not in currencies and currencies[0] != currencies[1]:
        return []
    return [
        CostChange(*place, before.get(place), after.get(place), currencies[1] or currencies[0])
        for place in dict.fromkeys([*before, *after])
    ]


@dataclass(frozen=True)
class OutcomeChange:
    """How often the answers of one group came to one of COUNTED, in shares from 0 to 1.

    ``p_value`` is two-sided and corrected (Holm) over all changes of the comparison; NaN where nothing can be
    tested. ``risen``: there are more of them, and not by chance.
    """

    key: GroupKey
    outcome: str
    base: float
    candidate: float
    n_items: int
    p_value: float
    risen: bool = False


def outcome_changes(
    base: Mapping[GroupKey, ItemGroup],
    candidate: Mapping[GroupKey, ItemGroup],
    matches: Sequence[Match],
    statistics: StatisticsConfig,
    alpha: float,
) -> tuple[OutcomeChange, ...]:
    """The outcomes that either run has any of, in the order of the groups; ``alpha`` is the tests' level."""
    found = [
        change
        for key, before, after in _one_a_group(base, candidate, matches)
        for change in _counted_changes(key, before, after, statistics)
    ]
    corrected = adjust([change.p_value for change in found], "holm")
    return tuple(
        replace(change, p_value=float(p), risen=bool(change.candidate > change.base and p < alpha))
        for change, p in zip(found, corrected, strict=True)
    )


def _one_a_group(
    base: Mapping[GroupKey, ItemGroup], candidate: Mapping[GroupKey, ItemGroup], matches: Sequence[Match]
) -> Iterator[tuple[GroupKey, ItemGroup, ItemGroup]]:
    """The first pair of each group of items that both runs counted: its pairs rest on the same answers."""
    seen = set()
    for match in matches:
        if match.base is None or match.candidate is None:
            continue
        place, sides = (match.key.benchmark, match.key.facets), (base[match.base], candidate[match.candidate])
        if place not in seen and all(side.outcomes for side in sides):
            seen.add(place)
            yield match.key, *sides


def _counted_changes(
    key: GroupKey, base: ItemGroup, candidate: ItemGroup, statistics: StatisticsConfig
) -> Iterator[OutcomeChange]:
    joined = join(_all_scored(base), _all_scored(candidate))
    for name in COUNTED if len(joined) else ():
        if name not in base.outcomes or name not in candidate.outcomes:
            continue
        before, after = base.outcomes[name][joined.base], candidate.outcomes[name][joined.candidate]
        if not before.any() and not after.any():
            continue
        compared = compare_items(
            build_aggregation("mean"),
            ItemColumn(before, before[:, None]),
            ItemColumn(after, after[:, None]),
            shared_clusters((base, joined.base), (candidate, joined.candidate)),
            statistics,
            higher_is_better=False,
        )
        yield OutcomeChange(key, name, compared.base, compared.candidate, compared.n_items, compared.p_value)


def _all_scored(group: ItemGroup) -> ItemGroup:
    """The group with all its items: what was not scored was answered, or not, all the same."""
    return replace(group, scored=np.ones(len(group), dtype=np.bool_))


MODEL = "model_name"


@dataclass(frozen=True)
class ComparedRun:
    """A run's item rows by group, its result rows, and its manifest (empty where a folder holds none).

    ``parts`` are the manifests of the runs that it was put together from, ``stopping`` how the groups were
    asked that need not have been asked whole. Of a night, ``evaluations`` are the groups of each, none of one
    that failed, and ``unread`` says why the rows of one that did not fail can't be read.
    """

    name: str
    groups: Mapping[GroupKey, ItemGroup]
    results: tuple[Mapping[str, Any], ...] = ()
    manifest: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Mapping[str, Any], ...] = ()
    stopping: Mapping[GroupKey, Stopping] = field(default_factory=dict)
    evaluations: Mapping[str, frozenset[GroupKey]] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        name: str,
        groups: Mapping[GroupKey, ItemGroup],
        results: tuple[Mapping[str, Any], ...],
        manifest: Mapping[str, Any],
    ) -> "ComparedRun":
        """One run, as its files have it."""
        stopping = Stopping.of_manifest(manifest)
        return cls(
            name,
            groups,
            results,
            manifest,
            stopping={} if stopping is None else dict.fromkeys(groups, stopping),
        )

    @property
    def stopped(self) -> Stopping | None:
        """How it stopped, if a part of it did before all was asked."""
        return next((own for own in self.stopping.values() if own.early), None)

    def evaluation_of(self, key: GroupKey) -> str | None:
        """The evaluation that a group is of; None where the run is no night."""
        return next((name for name, keys in self.evaluations.items() if key in keys), None)

    @property
    def manifests(self) -> tuple[Mapping[str, Any], ...]:
        """Every manifest that says something about the run."""
        return (self.manifest, *self.parts) if self.manifest else self.parts

    @cached_property
    def failures(self) -> Mapping[GroupKey, str]:
        """Why groups failed in this run."""
        failed = (row for row in self.results if row["status"] == "failed")
        return {result_key(row): row["error"] or "no reason given" for row in failed}

    def failed_pairs(self) -> Mapping[tuple[str, str], str]:
        """(filter, metric) → why, for the pairs that failed in this run."""
        return {(key.filter, key.metric): why for key, why in self.failures.items()}

    @cached_property
    def varying(self) -> frozenset[str]:
        """What tells groups of the run apart: the facets, and "benchmark", that have several values in it."""
        values: dict[str, set[str]] = {}
        for key in (*self.groups, *self.failures):
            for name, value in (("benchmark", key.benchmark), *key.facets):
                values.setdefault(name, set()).add(value)
        return frozenset(name for name, own in values.items() if len(own - {UNKNOWN}) > 1)


def open_run(name: str, store: Store) -> ComparedRun:
    """The run in the folder ``name``, else the one that the store's history has under that id.

    Raises ComparisonError for a name that is neither, and for files that are not those of a run.
    """
    folder = Path(name)
    if folder.is_dir():
        return _from_folder(name, folder)
    known = known_runs(store)
    if name in known:
        return recorded_run(name, store)
    hint = nearest(name, known) or f" ({len(known)} runs are recorded there)"
    raise ComparisonError(f"'{name}' is neither an output folder nor a run in the store {store.uri}{hint}")


def open_night(night: Night, store: Store) -> Mapping[str, ComparedRun]:
    """The night's evaluations by name; those without results have no groups."""
    return {entry.name: _of_night(entry, store) for entry in night.evaluations}


def _of_night(entry: NightEvaluation, store: Store) -> ComparedRun:
    try:
        return recorded_run(entry.run_id, store)
    except NightjarError as error:
        if not entry.ok:  # it failed before it had any: the night's record says why
            return ComparedRun(entry.run_id, {})
        said = f"the baseline's {error}; python -m flows.store --repair repairs what it can"
        return ComparedRun(entry.run_id, {}, unread={entry.name: said})


def open_runs(names: Iterable[str], store: Store) -> Mapping[str, ComparedRun]:
    """Runs by what ``open_run`` finds them by, as far as they came to results."""
    found = {}
    for name in names:
        with suppress(NightjarError):  # it failed before it had any: the night's record says why
            found[name] = open_run(name, store)
    return found


def merged_run(name: str, runs: Mapping[str, ComparedRun]) -> ComparedRun:
    """Several evaluations as one run.

    A model that an evaluation does not group by becomes a facet: the same benchmark on two models stays
    apart.
    """
    groups = {key_with_model(key, run): group for run in runs.values() for key, group in run.groups.items()}
    results = tuple(_row_with_model(row, run) for run in runs.values() for row in run.results)
    manifests = tuple(run.manifest for run in runs.values() if run.manifest)
    stopping = {key_with_model(key, run): own for run in runs.values() for key, own in run.stopping.items()}
    return ComparedRun(
        name,
        groups,
        results,
        parts=manifests,
        stopping=stopping,
        evaluations={
            own: frozenset(key_with_model(key, run) for key in run.groups) for own, run in runs.items()
        },
        unread={own: why for run in runs.values() for own, why in run.unread.items()},
    )


def match_groups(base: ComparedRun, candidate: ComparedRun) -> list[Match]:
    """As ``match_runs``; but where both nights were to have an evaluation, and it failed in one of them, no
    other model or benchmark stands in for it."""
    matches = match_runs(base.groups, candidate.groups)
    return [
        part
        for match in matches
        for part in (
            (Match(match.base, None), Match(None, match.candidate))
            if _stands_in(base, candidate, match)
            else (match,)
        )
    ]


def _stands_in(base: ComparedRun, candidate: ComparedRun, match: Match) -> bool:
    if match.base is None or match.candidate is None:
        return False
    before, after = base.evaluation_of(match.base), candidate.evaluation_of(match.candidate)
    same = (match.base.benchmark, match.base.facet(MODEL)) == (
        match.candidate.benchmark,
        match.candidate.facet(MODEL),
    )
    return not same and before != after and (before in candidate.evaluations or after in base.evaluations)


def over_facets(run: ComparedRun, pairs: Collection[str]) -> ComparedRun:
    """The run with all items of each of these pairs as one group by model and prompt, over its own facets.

    Raises ComparisonError where a facet holds samples of one item apart: no row has their mean.
    """
    groups: dict[GroupKey, list[ItemGroup]] = {}
    for key, group in run.groups.items():
        groups.setdefault(key_over_facets(key, pairs), []).append(group)
    return replace(
        run,
        groups={key: _together(key, parts) for key, parts in groups.items()},
        stopping={key_over_facets(key, pairs): own for key, own in run.stopping.items()},
        evaluations={
            name: frozenset(key_over_facets(key, pairs) for key in keys)
            for name, keys in run.evaluations.items()
        },
    )


def key_over_facets(key: GroupKey, pairs: Collection[str]) -> GroupKey:
    """The group that a group's items come to in ``over_facets``."""
    own = frozenset(name for name, _ in key.facets) - frozenset(CELL_FACETS)
    return key.without(own) if key.pair in pairs else key


def _together(key: GroupKey, groups: Sequence[ItemGroup]) -> ItemGroup:
    if len(groups) == 1:
        return groups[0]
    items = [item for group in groups for item in zip(group.digests, group.item_ids, strict=True)]
    if len(set(items)) < len(items):
        raise ComparisonError(
            f"{key.pair}: a facet holds samples of one item apart, so that no row has the item's own value:"
            " facets: overall needs facets of items"
        )
    tables = [group.statistics for group in groups if group.statistics is not None]
    objects = [row for group in groups for row in group.objects or [None] * len(group)]
    clustered = any(group.clusters is not None for group in groups)
    counted = set.intersection(*(set(group.outcomes) for group in groups))
    return ItemGroup(
        item_ids=np.concatenate([group.item_ids for group in groups]),
        digests=np.concatenate([group.digests for group in groups]),
        clusters=np.concatenate([_clusters_or_none(group) for group in groups]) if clustered else None,
        value=np.concatenate([group.value for group in groups]),
        statistics=np.concatenate(tables) if len(tables) == len(groups) else None,
        objects=objects if any(group.objects is not None for group in groups) else None,
        scored=np.concatenate([group.scored for group in groups]),
        outcomes={
            name: np.concatenate([group.outcomes[name] for group in groups]) for name in sorted(counted)
        },
    )


def _clusters_or_none(group: ItemGroup) -> NDArray[np.object_]:
    return np.full(len(group), None, dtype=object) if group.clusters is None else group.clusters


def reused_groups(runs: Mapping[str, ComparedRun]) -> frozenset[GroupKey]:
    """The groups, named as in ``merged_run``, of models that the night asked nothing: all answers were older.

    A recording is never asked, and is not meant. A group over several models counts if all of them are such.
    """
    found = set()
    for run in runs.values():
        models = run.manifest.get("models") or {}
        reused = {name for name, counts in models.items() if _is_reused(counts)}
        reused -= _recordings(run.manifest)
        for key in run.groups:
            model = key.facet(MODEL)
            if reused and (model in reused if model is not None else reused == set(models)):
                found.add(key_with_model(key, run))
    return frozenset(found)


def _is_reused(counts: Mapping[str, Any]) -> bool:
    return bool(counts.get("cached")) and not counts.get("sent") and not counts.get("same_night")


def _recordings(manifest: Mapping[str, Any]) -> set[str]:
    models = (manifest.get("config") or {}).get("models") or ()
    return {model["name"] for model in models if is_recorded(str(model.get("type")))}


def baseline_run(name: str, nights: Sequence[Mapping[str, ComparedRun]]) -> ComparedRun:
    """Several nights, oldest first, as one baseline: each item's mean."""
    if not nights:
        return ComparedRun(name, {})
    runs = [merged_run(name, night) for night in nights]
    return replace(runs[-1], groups=pooled_groups([run.groups for run in runs]))


def night_changes(
    base: Mapping[str, ComparedRun], candidate: Mapping[str, ComparedRun]
) -> tuple[Change, ...]:
    """What else changed in each evaluation since the baseline."""
    return tuple(
        replace(change, what=f"{name}, {change.what}")
        for name in candidate
        if name in base
        for change in changes(base[name].manifest, candidate[name].manifest)
    )


def pooled_groups(runs: Sequence[Mapping[GroupKey, ItemGroup]]) -> Mapping[GroupKey, ItemGroup]:
    """The runs' groups, each item with the mean of its values and statistics over the runs that scored it.

    Runs come oldest first; the newest says which groups and items there are. Rows of kind "values" that are
    not one number can't be averaged and stay those of the newest run.
    """
    if len(runs) < 2:
        return runs[-1] if runs else {}
    earlier = [(run, counterparts(runs[-1], run)) for run in runs[:-1]]
    return {
        key: _pooled(group, [run[known[key]] for run, known in earlier if key in known])
        for key, group in runs[-1].items()
    }


def _from_folder(name: str, folder: Path) -> ComparedRun:
    items, results, manifest = (
        folder / file for file in ("items.parquet", "results.parquet", "manifest.json")
    )
    if not items.is_file():
        raise ComparisonError(f"'{name}' is not the output of a run: no items.parquet in it")
    try:
        return ComparedRun.of(
            name,
            read_groups(items, str(items)),
            tuple(pq.read_table(results).to_pylist()) if results.is_file() else (),
            _manifest_in(manifest) if manifest.is_file() else {},
        )
    except (pa.ArrowInvalid, OSError, ValueError) as error:
        raise ComparisonError(f"'{name}': can't read the run's files: {error}") from error


def _manifest_in(file: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(file.read_bytes())
    except ValueError as error:
        raise ComparisonError(
            f"{file} is no manifest of a run: {error}; write the run's files again: repeat its command"
        ) from error
    parts = [document.get(key) or {} for key in MAPPINGS] if isinstance(document, Mapping) else [None]
    if all(isinstance(part, Mapping) for part in parts):
        parts = list((document.get("models") or {}).values())
    if not all(isinstance(part, Mapping) for part in parts):
        raise ComparisonError(f"{file} is no manifest of a run")
    return cast(Mapping[str, Any], document)


def recorded_run(run_id: str, store: Store) -> ComparedRun:
    """The run that the store's history has under an id; raises ComparisonError where it can't be read."""
    try:
        results = read_rows(store, "results", run_id).to_pylist()
        with open_rows(store, "items", run_id) as items:
            groups = groups_in(items.file, f"{ITEMS}/{run_id}.parquet")
    except (HistoryError, FileMissing, FileDamaged) as error:
        raise ComparisonError(f"run '{run_id}': its rows can't be read: {error}") from error
    return ComparedRun.of(run_id, groups, tuple(results), find_manifest(store, run_id))


def _pooled(newest: ItemGroup, earlier: Sequence[ItemGroup]) -> ItemGroup:
    if newest.objects is not None:
        return newest
    groups = [newest, *(group for group in earlier if _same_shape(group, newest))]
    rows = [_aligned(newest, group) for group in groups]
    scored = [
        np.where(row >= 0, group.scored[row] if len(group) else False, False)
        for row, group in zip(rows, groups, strict=True)
    ]
    times = np.sum(scored, axis=0)
    statistics = None
    if newest.statistics is not None:
        tables = [group.statistics for group in groups if group.statistics is not None]
        statistics = _mean([table[row] for table, row in zip(tables, rows, strict=True)], scored, times)
    value = _mean([group.value[row] for group, row in zip(groups, rows, strict=True)], scored, times)
    return replace(newest, value=value, statistics=statistics, scored=times > 0)


def _mean(
    columns: Sequence[NDArray[np.float64]], scored: Sequence[NDArray[np.bool_]], times: NDArray[np.int_]
) -> NDArray[np.float64]:
    """Mean over the runs that scored a row; NaN where none did."""
    shape = (-1,) + (1,) * (columns[0].ndim - 1)
    total = sum(
        (np.where(mask.reshape(shape), column, 0.0) for column, mask in zip(columns, scored, strict=True)),
        start=np.zeros_like(columns[0]),
    )
    divisor = np.where(times > 0, times, 1).reshape(shape)
    return np.where((times > 0).reshape(shape), total / divisor, np.nan)


def _aligned(newest: ItemGroup, group: ItemGroup) -> NDArray[np.intp]:
    """For each row of ``newest`` the row of the same item in ``group``; -1: not there."""
    rows = {key: row for row, key in enumerate(row_keys(group))}
    return np.array([rows.get(key, -1) for key in row_keys(newest)], dtype=np.intp)


def _same_shape(group: ItemGroup, newest: ItemGroup) -> bool:
    """Whether statistics can be averaged: a metric that changed its statistics between nights is another
    metric."""
    if len(group) == 0 or group.objects is not None:
        return False
    if group.statistics is None or newest.statistics is None:
        return group.statistics is newest.statistics
    return bool(group.statistics.shape[1] == newest.statistics.shape[1])


def key_with_model(key: GroupKey, run: ComparedRun) -> GroupKey:
    """The key with the run's only model as a facet, unless it has that facet or the run several models."""
    models = list(run.manifest.get("models") or ())
    if len(models) != 1 or key.facet(MODEL) is not None:
        return key
    return replace(key, facets=tuple(sorted((*key.facets, (MODEL, models[0])))))


def _row_with_model(row: Mapping[str, Any], run: ComparedRun) -> Mapping[str, Any]:
    """The row of results under the key that its group has in ``merged_run``."""
    model = key_with_model(result_key(row), run).facet(MODEL)
    return (
        row if model is None else {**row, "facets": facets_text(parse_facets(row["facets"]) | {MODEL: model})}
    )
