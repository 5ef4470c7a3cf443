"""What each model of a run cost, answering or judging, and what it cost in another run.

Answers that were reused count at what they cost when they were asked for: otherwise whichever run came second
would look cheap.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

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
