"""What besides chance may explain a difference of two runs: above all, that another model answered.

``changes`` lists them for the comparison, those that cast doubt on it first.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

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
