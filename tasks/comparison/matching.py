"""What is compared with what: a run's item rows by pair, reduction, label and facet values; groups of two
runs, and within a group the rows of the same item.

Reads ``items.parquet`` as exports write it (one column a facet) and the history's copies of it (a
``facets`` column of JSON objects) alike, and finds the aggregation that makes one number of a group.
Groups match by their keys, apart from facets that the two runs are about; rows match by the digest of the
item's content, never by position or id.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from metrics.aggregation import Aggregation, build_aggregation
from metrics.errors import ConfigError, NightjarError
from metrics.statistics.differences import ItemColumn
from tasks.reduction.facets import facet_texts, facet_words, parse_facets, plain_text
from tasks.store.schemas import CELL_FACETS, COUNTED, cluster_ways

KEY_COLUMNS = ("benchmark", "filter", "metric", "reduction")
ROW_COLUMNS = (
    "item_id",
    "item_digest",
    "cluster",
    "value",
    "statistics",
    "value_json",
    "n_samples",
    "n_scored",
    *(f"n_{name}" for name in COUNTED),
)
NO_FACETS = ("run_id", "label", "facets")
DEFAULT_REDUCTION = "mean"
BATCH = 65_536
PREFIX = "agg:"


class ComparisonError(NightjarError):
    """Two runs can't be compared: one is not there, or its files are not those of a run."""


@dataclass(frozen=True, order=True)
class GroupKey:
    """What a group's rows share: the pair, its reduction, the label and the values of the facets, sorted by
    name."""

    benchmark: str
    filter: str
    metric: str
    reduction: str
    label: str | None = None
    facets: tuple[tuple[str, str], ...] = ()

    @property
    def pair(self) -> str:
        """The name that exports and gate files use: ``metric,filter``, or ``reduction(metric),filter``."""
        metric = self.metric if self.reduction == DEFAULT_REDUCTION else f"{self.reduction}({self.metric})"
        return f"{metric},{self.filter}"

    @property
    def facet_words(self) -> list[str]:
        """The values of the facets, for people."""
        return [facet_words(value) for _, value in self.facets]

    def facet(self, name: str) -> str | None:
        """The value of one facet; None where the group has no such facet."""
        return dict(self.facets).get(name)

    def without(self, facets: frozenset[str]) -> "GroupKey":
        """The key with some facets left out: what two groups share although those differ."""
        return replace(self, facets=tuple(entry for entry in self.facets if entry[0] not in facets))

    @property
    def plain(self) -> "GroupKey":
        """The key with each value as it reads: of 1 and "1" alike."""
        return replace(self, facets=tuple((name, plain_text(value)) for name, value in self.facets))

    def holds(self, other: "GroupKey") -> bool:
        """Whether the other group is this one or, where this one is over some facets, a part of it."""
        return set(self.facets) <= set(other.facets) and replace(self, facets=other.facets) == other


@dataclass(frozen=True)
class ItemGroup:
    """The item rows of one group, n rows beside each other.

    ``statistics`` is (n, k) and None for metrics of kind "values", whose rows are in ``objects`` (None where
    the row is one float and ``value`` says it all). ``scored`` is False where the item could not be scored;
    nothing of such a row may be looked at. ``outcomes`` holds, for each of COUNTED that the run counted, the
    share of each item's samples that came to it (n,).
    """

    item_ids: NDArray[np.object_]
    digests: NDArray[np.object_]
    clusters: NDArray[np.object_] | None
    value: NDArray[np.float64]
    statistics: NDArray[np.float64] | None
    objects: list[Any] | None
    scored: NDArray[np.bool_]
    outcomes: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.item_ids)

    def take(self, rows: NDArray[np.intp]) -> "ItemGroup":
        """Some of its rows."""
        return ItemGroup(
            item_ids=self.item_ids[rows],
            digests=self.digests[rows],
            clusters=None if self.clusters is None else self.clusters[rows],
            value=self.value[rows],
            statistics=None if self.statistics is None else self.statistics[rows],
            objects=None if self.objects is None else [self.objects[row] for row in rows],
            scored=self.scored[rows],
            outcomes={name: share[rows] for name, share in self.outcomes.items()},
        )


AggregationOf = Callable[[GroupKey, ItemGroup], Aggregation]
"""The aggregation of a group; raises NightjarError where there is none."""
PairName = tuple[str, str, str]
"""Benchmark, filter, metric."""


def read_groups(source: Path, name: str) -> Mapping[GroupKey, ItemGroup]:
    """All groups of an items file, in the file's order; raises ComparisonError, with ``name``, for another
    file."""
    try:
        with pq.ParquetFile(source, pre_buffer=False) as file:
            return groups_in(file, name)
    except (pa.ArrowInvalid, OSError) as error:
        raise ComparisonError(f"{name}: not a readable Parquet file of item rows: {error}") from error


def groups_in(file: pq.ParquetFile, name: str) -> Mapping[GroupKey, ItemGroup]:
    """As ``read_groups``, of a file that is open."""
    _check_columns(file.schema_arrow.names, name)
    return groups_of(file.iter_batches(batch_size=BATCH))


def groups_of(batches: Iterable[pa.RecordBatch]) -> Mapping[GroupKey, ItemGroup]:
    """As ``groups_in``, of rows that are in memory."""
    parts: dict[GroupKey, list[pa.RecordBatch]] = {}
    for batch in batches:
        for key, rows in _split(batch):
            parts.setdefault(key, []).append(rows)
    return {key: _group(pa.Table.from_batches(own)) for key, own in parts.items()}


def result_key(row: Mapping[str, Any]) -> GroupKey:
    """The group that a row of results belongs to. A row over the facets of the items says model and prompt
    beside them."""
    return _key({name: row.get(name) for name in (*KEY_COLUMNS, "label", "facets", *CELL_FACETS)})


def aggregations(
    known: Mapping[PairName, Aggregation], results: Iterable[Mapping[str, Any]]
) -> AggregationOf:
    """Looks an aggregation up in ``known``, which comes from the run's config; else by the name in the
    signatures of its result rows; a run that has neither is taken to average its items."""
    named = {
        (row["benchmark"], row["filter"], row["metric"]): _named(row["signature"])
        for row in results
        if row["signature"]
    }

    def of(key: GroupKey, group: ItemGroup) -> Aggregation:
        place = (key.benchmark, key.filter, key.metric)
        found = known.get(place) or _registered(named.get(place) or "mean", key)
        width = None if group.statistics is None else group.statistics.shape[1]
        if found.kind == "sums" and width is not None and width != found.k:
            raise ComparisonError(
                f"{key.pair}: '{found.name}' adds up {found.k} numbers an item, the rows have {width};"
                " the run's manifest.json, with its config, has to be beside them"
            )
        return found

    return of


def _check_columns(names: list[str], source: str) -> None:
    needed = {*KEY_COLUMNS, "item_id", "item_digest", "value"}
    if absent := sorted(needed - set(names)):
        raise ComparisonError(
            f"{source}: no item rows: expected the columns of items.parquet, {', '.join(absent)} not there"
        )


def _split(batch: pa.RecordBatch) -> Iterator[tuple[GroupKey, pa.RecordBatch]]:
    """The batch's rows by group, groups in order of appearance."""
    names = [name for name in batch.schema.names if name not in ROW_COLUMNS and name != "run_id"]
    codes = np.zeros(batch.num_rows, dtype=np.int64)
    values: dict[str, list[Any]] = {}
    for name in names:
        column = batch.column(name)
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        values[name] = [*column.dictionary.to_pylist(), None]
        indices = column.indices.fill_null(len(values[name]) - 1).to_numpy(zero_copy_only=False)
        codes = codes * len(values[name]) + indices
        # Codes are renumbered after each column, so that many facets of many values can't overflow.
        codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    _, firsts, sizes = np.unique(codes, return_index=True, return_counts=True)
    # One stable sort puts every group's rows beside each other: many facet values cost no more than few.
    order = np.argsort(codes, kind="stable")
    rows = batch.select([name for name in ROW_COLUMNS if name in batch.schema.names]).take(pa.array(order))
    ends = np.cumsum(sizes)
    for group in np.argsort(firsts):
        row = {name: batch.column(name)[int(firsts[group])].as_py() for name in names}
        yield _key(row), rows.slice(int(ends[group] - sizes[group]), int(sizes[group]))


def _key(row: Mapping[str, Any]) -> GroupKey:
    # A facet called like a column of item rows is written as "facet.<name>".
    texts = {
        name.removeprefix("facet."): value
        for name, value in row.items()
        if name not in (*KEY_COLUMNS, *NO_FACETS) and value is not None
    }
    texts |= facet_texts(parse_facets(row.get("facets") or "{}"))
    return GroupKey(
        **{name: row[name] for name in KEY_COLUMNS},
        label=row.get("label"),
        facets=tuple(sorted(texts.items())),
    )


def _group(table: pa.Table) -> ItemGroup:
    value = table.column("value").cast(pa.float64()).fill_null(np.nan).to_numpy()
    statistics, has_statistics = _statistics(table)
    objects = _objects(table)
    scored = ~np.isnan(value) | has_statistics
    if objects is not None:
        scored |= np.array([entry is not None for entry in objects])
    clusters = _texts(table, "cluster")
    return ItemGroup(
        item_ids=_texts(table, "item_id"),
        digests=_texts(table, "item_digest"),
        clusters=None if all(cluster is None for cluster in clusters) else clusters,
        value=value,
        statistics=statistics,
        objects=objects,
        scored=scored,
        outcomes=_outcomes(table),
    )


def _outcomes(table: pa.Table) -> dict[str, NDArray[np.float64]]:
    """Shares of each item's samples; runs of versions that did not count them have none."""
    if "n_samples" not in table.schema.names:
        return {}
    samples = np.maximum(table.column("n_samples").to_numpy(), 1)
    return {
        name: table.column(f"n_{name}").to_numpy() / samples
        for name in COUNTED
        if f"n_{name}" in table.schema.names and not table.column(f"n_{name}").null_count
    }


def _texts(table: pa.Table, name: str) -> NDArray[np.object_]:
    if name not in table.schema.names:
        return np.full(table.num_rows, None, dtype=object)
    texts: NDArray[np.object_] = table.column(name).cast(pa.string()).to_numpy()
    return texts


def _statistics(table: pa.Table) -> tuple[NDArray[np.float64] | None, NDArray[np.bool_]]:
    """The (n, k) statistics, NaN where a row has none, and which rows have them."""
    if "statistics" not in table.schema.names:
        return None, np.zeros(table.num_rows, dtype=bool)
    column = table.column("statistics").combine_chunks()
    present = column.is_valid().to_numpy(zero_copy_only=False)
    flat = column.flatten().to_numpy(zero_copy_only=False)
    if not present.any() or not len(flat):
        return None, np.zeros(table.num_rows, dtype=bool)
    statistics = np.full((table.num_rows, len(flat) // int(present.sum())), np.nan)
    statistics[present] = flat.reshape(int(present.sum()), -1)
    return statistics, present


def _objects(table: pa.Table) -> list[Any] | None:
    if "value_json" not in table.schema.names:
        return None
    texts = table.column("value_json").to_pylist()
    if all(text is None for text in texts):
        return None
    return [None if text is None else json.loads(text) for text in texts]


def _named(signature: str) -> str | None:
    return next((part[len(PREFIX) :] for part in signature.split("|") if part.startswith(PREFIX)), None)


def _registered(name: str, key: GroupKey) -> Aggregation:
    try:
        return build_aggregation(name)
    except ConfigError as error:
        raise ComparisonError(
            f"{key.pair}: aggregation '{name}' is the run's own, and its config can't be read now ({error})"
        ) from error


@dataclass(frozen=True)
class Match:
    """Two groups to compare; one of them is None where the other run has nothing like it."""

    base: GroupKey | None
    candidate: GroupKey | None

    @property
    def key(self) -> GroupKey:
        """The key it goes by: the baseline's, where there is one."""
        key = self.base or self.candidate
        assert key is not None
        return key


@dataclass(frozen=True)
class JoinedItems:
    """Which rows of two groups belong to the same item and are scored in both, in the baseline's order.

    ``base`` and ``candidate`` are row numbers of equal length. The counts say what became of the rest:
    ``missing`` items of the baseline are not in the candidate, ``unscored`` ones are but have no score there,
    ``unscored_base`` have none in the baseline, ``new`` ones the baseline does not know. Where rows are not
    ``paired`` the row numbers are all scored ones of either group, and of different length.
    """

    base: NDArray[np.intp]
    candidate: NDArray[np.intp]
    n_base: int
    n_candidate: int
    missing: int
    unscored: int
    unscored_base: int
    new: int
    paired: bool = True

    @property
    def coverage(self) -> float:
        """Share of the baseline's items that are in the candidate and scored there, or, unpaired, of the
        candidate's own items that are scored; NaN without items."""
        if not self.paired:
            return len(self.candidate) / self.n_candidate if self.n_candidate else float("nan")
        return (self.n_base - self.missing - self.unscored) / self.n_base if self.n_base else float("nan")

    def __len__(self) -> int:
        return len(self.base)


@dataclass(frozen=True)
class Flipped:
    """An item whose value changed between 0 and 1; ``place`` and ``text`` are how people find one without an
    id of its own."""

    item_id: str
    item_digest: str
    base: float
    candidate: float
    place: str = ""
    text: str = ""

    @property
    def name(self) -> str:
        """Its place, else its id."""
        return self.place or self.item_id


def match_runs(base: Iterable[GroupKey], candidate: Iterable[GroupKey]) -> list[Match]:
    """Groups of equal keys. A facet (or the benchmark's name) that has one value throughout each run is what
    the two runs are about, as with two checkpoints of one model, and does not hold them apart."""
    base, candidate = list(base), list(candidate)
    names = {name for key in (*base, *candidate) for name, _ in key.facets}
    constant = frozenset(name for name in names if _is_constant(base, name) and _is_constant(candidate, name))
    several = len({key.benchmark for key in base}) > 1 or len({key.benchmark for key in candidate}) > 1

    def shared(key: GroupKey) -> GroupKey:
        return key.without(constant) if several else replace(key.without(constant), benchmark="")

    others = {shared(key): key for key in candidate}
    partners = counterparts(map(shared, base), others)
    matches = [Match(key, others.pop(partners.get(own, own), None)) for key in base for own in [shared(key)]]
    return matches + [Match(None, key) for key in others.values()]


def counterparts(keys: Iterable[GroupKey], others: Iterable[GroupKey]) -> dict[GroupKey, GroupKey]:
    """For each of one run's keys the same group of another run, where it has it.

    A value that one run has as a text and the other as a number, or that an old file has as text alone, is
    the same where neither run has both.
    """
    keys, others = list(keys), list(others)
    found = {key: key for key in {*keys} & {*others}}
    if len(found) == len({*keys}):
        return found
    alike = _by_reading(others)
    for reading, own in _by_reading(keys).items():
        if len(own) == len(alike.get(reading, ())) == 1:
            found[own[0]] = alike[reading][0]
    return found


def _by_reading(keys: Iterable[GroupKey]) -> dict[GroupKey, list[GroupKey]]:
    found: dict[GroupKey, list[GroupKey]] = {}
    for key in dict.fromkeys(keys):
        found.setdefault(key.plain, []).append(key)
    return found


def match_across(groups: Iterable[GroupKey], facet: str) -> list[Match]:
    """Every two values of a facet within one run against each other, the first to appear as the baseline.

    Raises ConfigError when the run does not hold at least two values of that facet apart.
    """
    keys = list(groups)
    values = list(dict.fromkeys(key.facet(facet) for key in keys if facet in dict(key.facets)))
    if len(values) < 2:
        known = sorted({name for key in keys for name, _ in key.facets})
        found = (
            f"it has the one value {values[0]!r}"
            if values
            else f"the facets are {', '.join(known) or 'none'}"
        )
        raise ConfigError(f"--across {facet}: the run does not hold two values of this facet apart: {found}")
    dropped = frozenset({facet})
    by_value = {
        value: {key.without(dropped): key for key in keys if key.facet(facet) == value} for value in values
    }
    return [
        Match(key, by_value[second].get(shared))
        for first, second in combinations(values, 2)
        for shared, key in by_value[first].items()
    ]


def join(base: ItemGroup, candidate: ItemGroup) -> JoinedItems:
    """Joins on the content digest, never on position or id.

    A dataset may hold a row twice under two ids: the order of their ids distinguishes equal digests, so that
    the n-th copy meets the n-th copy.
    """
    rows = {key: row for row, key in enumerate(row_keys(candidate))}
    matched = np.array([rows.get(key, -1) for key in row_keys(base)], dtype=np.intp)
    present = matched >= 0
    scored = present.copy()
    scored[present] = candidate.scored[matched[present]]
    both = scored & base.scored
    return JoinedItems(
        base=np.flatnonzero(both),
        candidate=matched[both],
        n_base=len(base),
        n_candidate=len(candidate),
        missing=int((~present).sum()),
        unscored=int((present & ~scored).sum()),
        unscored_base=int((scored & ~base.scored).sum()),
        new=len(candidate) - int(present.sum()),
    )


def apart(base: ItemGroup, candidate: ItemGroup) -> JoinedItems:
    """All scored rows of two groups whose items need not be the same."""
    return JoinedItems(
        base=np.flatnonzero(base.scored),
        candidate=np.flatnonzero(candidate.scored),
        n_base=len(base),
        n_candidate=len(candidate),
        missing=0,
        unscored=len(candidate) - int(candidate.scored.sum()),
        unscored_base=len(base) - int(base.scored.sum()),
        new=0,
        paired=False,
    )


def flipped_items(base: ItemGroup, candidate: ItemGroup, joined: JoinedItems) -> tuple[Flipped, ...]:
    """The items that changed between right and wrong; none for a metric with other values than 0 and 1."""
    before, after = base.value[joined.base], candidate.value[joined.candidate]
    if not (np.isin(before, (0.0, 1.0)).all() and np.isin(after, (0.0, 1.0)).all()):
        return ()
    return tuple(
        Flipped(str(base.item_ids[row]), str(base.digests[row]), float(first), float(second))
        for row, first, second in zip(joined.base, before, after, strict=True)
        if first != second
    )


def _is_constant(keys: list[GroupKey], facet: str) -> bool:
    return len({key.facet(facet) for key in keys}) <= 1


def row_keys(group: ItemGroup) -> list[tuple[str, int]]:
    """(digest, which copy of it) for each row."""
    copies: dict[str, int] = {}
    keys: list[tuple[str, int]] = [("", 0)] * len(group)
    for row in np.argsort(group.item_ids.astype(str), kind="stable"):
        digest = group.digests[row]
        copies[digest] = copies.get(digest, -1) + 1
        keys[row] = (digest, copies[digest])
    return keys


def column_of(group: ItemGroup, rows: NDArray[np.intp], aggregation: Aggregation) -> ItemColumn:
    """Some rows of a group, as the comparison of metrics takes them."""
    value = group.value[rows]
    statistics = None if group.statistics is None else group.statistics[rows]
    if statistics is None and aggregation.kind == "sums" and aggregation.encode is not None:
        statistics = aggregation.encode(value)
    return ItemColumn(
        value=value,
        statistics=statistics,
        values=None if group.objects is None else [group.objects[row] for row in rows],
    )


def clusters_of(group: ItemGroup, rows: NDArray[np.intp]) -> NDArray[np.int64] | None:
    """Numbers of the clusters that some items belong to, (n,), or (n, 2) where two fields cross; an item
    without one is a cluster of its own."""
    if group.clusters is None:
        return None
    own = [
        cluster_ways(cluster) if cluster is not None else (row,)
        for row, cluster in zip(rows.tolist(), group.clusters[rows], strict=True)
    ]
    ways = max((len(entry) for entry in own), default=1)
    columns = []
    for way in range(ways):
        numbers: dict[object, int] = {}
        entries = [entry[way] if way < len(entry) else entry for entry in own]
        columns.append([numbers.setdefault(entry, len(numbers)) for entry in entries])
    codes = np.array(columns, dtype=np.int64)
    return codes[0] if ways == 1 else codes.T


def shared_clusters(
    *sides: tuple[ItemGroup, NDArray[np.intp]],
) -> NDArray[np.int64] | None:
    """The clusters of the same items of several runs, oldest first: those of the newest that has any, since
    how its items belong together is how they are asked now."""
    found = (clusters_of(group, rows) for group, rows in reversed(sides))
    return next((clusters for clusters in found if clusters is not None), None)
