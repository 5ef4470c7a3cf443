"""Stage "decide": a gate looks at what was asked so far, and says whether anything more has to be.

Its picture on the run's page is the confidence sequence closing in: a line a look, from none of the items to
those that were asked by now.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from prefect.artifacts import create_markdown_artifact

from metrics.aggregation import Aggregation
from metrics.errors import printable
from metrics.statistics.sequence import SequenceLook
from tasks.caching import Workspace, artifact_task
from tasks.comparison.compare import Gate, pair_asked, stop_rule
from tasks.comparison.matching import (
    GroupKey,
    ItemGroup,
    Match,
    PairName,
    aggregations,
    groups_of,
    match_runs,
)
from tasks.comparison.runs import ComparedRun, baseline_run, merged_run, open_runs, over_facets
from tasks.comparison.stopping import Course
from tasks.messages.markdown import as_text
from tasks.patience import if_possible
from tasks.reduction.reduce import reduce_pair
from tasks.rows.parts import Origin, PairSetup, Part
from tasks.store.errors import StoreError
from tasks.store.keys import Answered, Step, Unkeyed, canonical_json
from tasks.store.schemas import LOOKS, row_batch
from tasks.store.storage import ArtifactRef, Store

PICTURED: Final = 20
"""Lines of a picture, at most."""
WIDE: Final = 61
"""Characters of a line that stand for the range of a difference."""
NOT_THERE: Final = "not in what was asked so far"


class DecideSetup(Unkeyed):
    """The pairs that are looked at, and what they are compared with."""

    benchmark: str
    models: tuple[str, ...]
    pairs: tuple[PairSetup, ...]
    gate: Gate
    baseline: tuple[tuple[str, ...], ...]
    seed: int


@artifact_task("decide", LOOKS)
def decide(
    step: Step[DecideSetup],
    origins: Sequence[Origin],
    statistics: Sequence[Sequence[ArtifactRef]],
    requests: Sequence[ArtifactRef],
    answers: Sequence[Answered],
    workspace: Workspace,
) -> Iterator[pa.RecordBatch]:
    """A row for each gated pair; its verdict is null while the pair is not decided. ``statistics`` stand
    beside the setup's pairs, and like the others beside ``origins``."""
    store, setup = workspace.open(), step.setup
    groups, known = dict[GroupKey, ItemGroup](), dict[PairName, Aggregation]()
    for pair, scored in zip(setup.pairs, statistics, strict=True):
        identity = pair.identity()
        parts = [Part.kept(store, *place) for place in zip(origins, scored, requests, answers, strict=True)]
        groups |= groups_of(reduce_pair(identity, parts, pair.facets))
        known[identity.benchmark, identity.filter, identity.metric.name] = identity.metric.aggregation
    looks = list(_looks(setup, groups, known, store))
    _show(setup, step.name, looks)
    yield row_batch([look.row() for look in looks], LOOKS)


@dataclass(frozen=True)
class PairLook:
    """A look at one pair: what the sequence says of it, or why it never says anything, and how it closed
    in."""

    key: GroupKey
    margin: float
    found: SequenceLook | str
    course: Course = ()

    def row(self) -> dict[str, Any]:
        """As LOOKS has it."""
        about: dict[str, Any] = {
            "benchmark": self.key.benchmark, "pair": self.key.pair, "label": self.key.label
        }  # fmt: skip
        about |= {"facets": canonical_json(dict(self.key.facets)).decode(), "margin": self.margin}
        if isinstance(self.found, str):
            return about | {"reason": self.found, "units": 0}
        names = ("verdict", "difference", "ci_low", "ci_high", "units")
        return about | {name: getattr(self.found, name) for name in names} | {"reason": None}

    @property
    def said(self) -> str:
        """In words."""
        name = " ".join([self.key.pair, *self.key.facet_words])
        if isinstance(self.found, str):
            return f"{name}: {self.found}"
        ends = f"{self.found.ci_low:+.4f} … {self.found.ci_high:+.4f}"
        return f"{name}: {self.found.verdict or 'not decided'}, {ends}, margin {self.margin:g}"


def _looks(
    setup: DecideSetup,
    groups: Mapping[GroupKey, ItemGroup],
    known: Mapping[PairName, Aggregation],
    store: Store,
) -> Iterator[PairLook]:
    """A look at every pair of the baseline that this evaluation's gate decides."""
    base = _baseline(store.uri, setup.baseline)
    tonight = ComparedRun("tonight", groups, manifest={"models": {name: {} for name in setup.models}})
    candidate = merged_run("tonight", {"tonight": tonight})
    if overall := setup.gate.overall:
        base, candidate = over_facets(base, overall), over_facets(candidate, overall)
    rule = stop_rule(setup.gate, base, setup.seed)
    assert rule is not None, "only a gate that stops has the stage"
    of = aggregations(known, base.results)
    for match in match_runs(base.groups, candidate.groups):
        if match.base is None or not setup.gate.covers(match.key.pair) or not _is_own(setup, match):
            continue
        terms = setup.gate.for_pair(match.key.pair)
        if match.candidate is None:
            yield PairLook(match.key, terms.margin, NOT_THERE)
            continue
        asked = pair_asked(base, candidate, match, of)
        found = rule.look(asked, terms.margin, terms.alpha)
        # What the gate will call inconclusive for its coverage is not decided, whatever the interval says.
        if not isinstance(found, str) and rule.coverage(asked) < terms.coverage:
            found = replace(found, verdict=None)
        yield PairLook(match.key, terms.margin, found, rule.course(asked, terms.alpha, PICTURED))


def _is_own(setup: DecideSetup, match: Match) -> bool:
    """Whether a pair of the baseline is one of this evaluation: other benchmarks and models are others'."""
    if match.candidate is not None:
        return True
    return match.key.benchmark == setup.benchmark and match.key.facet("model_name") in (None, *setup.models)


def _baseline(uri: str, nights: tuple[tuple[str, ...], ...]) -> ComparedRun:
    """The runs of the baseline's nights as one; read once by a process that looks again and again, and once
    more from a folder that was written again."""
    return _read_once(uri, nights, tuple(_written(name) for night in nights for name in night))


def _written(name: str) -> tuple[int, ...]:
    """When the files of a run's folder were written; nothing of a run of the store, which stays as it is."""
    if not Path(name).is_dir():
        return ()
    return tuple(
        path.stat().st_mtime_ns
        for path in (Path(name) / "items.parquet", Path(name) / "manifest.json")
        if path.is_file()
    )


@lru_cache(maxsize=2)
def _read_once(uri: str, nights: tuple[tuple[str, ...], ...], _: tuple[tuple[int, ...], ...]) -> ComparedRun:
    store = Store(uri)
    return baseline_run("baseline", [open_runs(night, store) for night in nights])


def answers_as(setup: DecideSetup, own: Sequence[Mapping[str, Any]], store: Store) -> list[str] | None:
    """The digests of a baseline's answers after the filters, if those of a run that asked all, its artifacts
    ``own`` as manifests have them, are the same however they were cut; None: they differ, or can't be read.

    Answers are compared by the digests of their artifacts, and blocks have others than a run without them.
    """
    if len(setup.baseline) != 1:
        return None
    for manifest in _baseline(store.uri, setup.baseline).manifests:
        if (manifest.get("config") or {}).get("name") != setup.benchmark:
            continue
        theirs = (manifest.get("artifacts") or {}).get("filter", ())
        with suppress(StoreError):
            if theirs and _rows_by_place(theirs, store) == _rows_by_place(own, store):
                return manifest.get("answers_as") or [ref["digest"] for ref in theirs]
    return None


def _rows_by_place(refs: Sequence[Mapping[str, Any]], store: Store) -> dict[tuple[Any, ...], pa.Table]:
    """What was predicted, filter by filter, for each model and prompt, in the order of the items."""
    tables: dict[tuple[Any, ...], list[pa.Table]] = {}
    for ref in refs:
        place = tuple(ref.get(name) for name in ("filter", "model_name", "prompt_template"))
        tables.setdefault(place, []).append(store.table(ArtifactRef.of(ref)))
    order = [("doc_id", "ascending"), ("sample_index", "ascending")]
    return {place: _plain(pa.concat_tables(parts)).sort_by(order) for place, parts in tables.items()}


def _plain(table: pa.Table) -> pa.Table:
    """The table without dictionaries, whose order is that of their values' first rows."""
    fields = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))


def _show(setup: DecideSetup, name: str, looks: Sequence[PairLook]) -> None:
    """Puts the picture on the run's page."""
    key = "".join(sign if sign.isalnum() else "-" for sign in setup.benchmark.lower()).strip("-")
    page, said = printable(picture(looks)), printable(f"{name}: {'; '.join(look.said for look in looks)}")
    key = f"{key if key.isascii() and key else 'run'}-decision"
    if_possible(lambda: create_markdown_artifact(page, key=key, description=as_text(said)))


def picture(looks: Sequence[PairLook]) -> str:
    """How each pair's interval closed in, as Markdown: the range of the difference from left to right, the
    margin at ``!``, no difference at ``:``, the interval between its ends."""
    parts = []
    for look in looks:
        parts += [f"### {as_text(look.said)}", ""]
        if course := look.course:
            low, high = min(end for _, end, _ in course), max(end for _, _, end in course)
            lines = [
                f"{asked:>9,}  {_line((first, last), (-look.margin, 0.0), (low, high))}"
                for asked, first, last in course
            ]
            parts += ["```", f"{'asked':>9}  {low:+.2f}{'':{WIDE - 10}}{high:+.2f}", *lines, "```", ""]
    return "\n".join(parts)


def _line(ends: tuple[float, float], marks: tuple[float, float], range_: tuple[float, float]) -> str:
    low, high = range_

    def place(value: float) -> int:
        return round((min(max(value, low), high) - low) / ((high - low) or 1.0) * (WIDE - 1))

    first, last = (place(end) for end in ends)
    line = ["─" if first < at < last else " " for at in range(WIDE)]
    line[first], line[last] = "├", "┤"
    for mark, sign in zip(marks, "!:", strict=True):
        if line[place(mark)] in "─ ":
            line[place(mark)] = sign
    return "".join(line).rstrip()
