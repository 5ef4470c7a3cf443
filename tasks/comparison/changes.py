"""What changed between two runs beside their scores.

``changes`` lists what besides chance may explain a difference, above all that another model answered;
those that cast doubt on the comparison come first. ``cost_changes`` says what each model cost in either
run: answers that were reused count at what they cost when they were asked for, otherwise whichever run
came second would look cheap. ``compare_runs`` asks once for each group of items whether answers were cut
off, empty or refused more often: a score may stay where it was while a model stops answering, so that a
rise is told beside the pairs, tested item by item like them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from metrics.aggregations.aggregation import build_aggregation
from metrics.config import StatisticsConfig
from metrics.statistics.comparison import ItemColumn, compare_items
from metrics.statistics.gate import adjust
from tasks.comparison.matching import GroupKey, ItemGroup, Match, clusters_of, join
from tasks.store.schemas import COUNTED

ChangeKind = Literal["model identity", "dataset", "scoring", "setting", "version"]

NOT_SETTINGS: Final = frozenset(
    {"base_dir", "config_file", "models", "limits", "prices", "errors", "answers", "canaries"}
)
"""Parts of a config that can't move a score, whether answers are asked for anew, and models, which are told
apart by what they serve."""
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
    return found if any(found.values()) else {}


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
        for match in _one_a_group(matches)
        if match.base is not None and match.candidate is not None
        for change in _counted_changes(match.key, base[match.base], candidate[match.candidate], statistics)
    ]
    corrected = adjust([change.p_value for change in found], "holm")
    return tuple(
        replace(change, p_value=float(p), risen=bool(change.candidate > change.base and p < alpha))
        for change, p in zip(found, corrected, strict=True)
    )


def _one_a_group(matches: Sequence[Match]) -> Iterator[Match]:
    """The first pair of each group of items: all its pairs rest on the same answers."""
    seen = set()
    for match in matches:
        group = (match.key.benchmark, match.key.facets)
        if group not in seen:
            seen.add(group)
            yield match


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
            clusters_of(base, joined.base),
            statistics,
            higher_is_better=False,
        )
        yield OutcomeChange(key, name, compared.base, compared.candidate, compared.n_items, compared.p_value)


def _all_scored(group: ItemGroup) -> ItemGroup:
    """The group with all its items: what was not scored was answered, or not, all the same."""
    return replace(group, scored=np.ones(len(group), dtype=np.bool_))
