"""What a gate asks of a comparison: margins, level, correction and coverage, for each pair."""

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from metrics.errors import ConfigError, nearest
from tasks.comparison.items import GroupKey

Method = Literal["auto", "mcnemar", "permutation", "bootstrap"]
Correction = Literal["holm", "bh", "none"]
Level = Annotated[float, Field(gt=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Margin = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PairGate(BaseModel):
    """What one pair is asked for; a key that is not given is the gate's own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    margin: Margin | None = Field(
        None, description="A loss up to this is acceptable, in the metric's own units"
    )
    alpha: Level | None = Field(None, description="Level of the test, after correction over all gated pairs")
    method: Method | None = Field(
        None, description="Test of the difference; auto chooses by the kind of metric"
    )
    coverage: Share | None = Field(
        None, description="Share of the baseline's items to be scored in the candidate"
    )


@dataclass(frozen=True)
class Terms:
    """What one pair is held against; the fields are those of a gate."""

    margin: float
    alpha: float
    method: Method
    coverage: float


class Gate(BaseModel):
    """A gate file (``compare --gate``, ``gate:`` of a suite)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    alpha: Level = Field(0.05, description="Level of the tests, after correction over all gated pairs")
    correction: Correction = Field("holm", description="holm | bh | none")
    coverage: Share = Field(
        0.99, description="Share of the baseline's items that must be scored in the candidate"
    )
    margin: Margin = Field(0.01, description="A loss up to this is acceptable, in the metric's own units")
    method: Method = Field("auto", description="Test of the difference; auto chooses by the kind of metric")
    pairs: dict[str, PairGate] = Field(
        default_factory=dict,
        description='"metric,filter" or "reduction(metric),filter"; without any, all pairs',
    )

    def for_pair(self, name: str) -> "Terms":
        """What the pair is held against: its own settings, completed with the gate's."""
        own = self.pairs.get(name, PairGate())
        return Terms(
            margin=self.margin if own.margin is None else own.margin,
            alpha=self.alpha if own.alpha is None else own.alpha,
            method=self.method if own.method is None else own.method,
            coverage=self.coverage if own.coverage is None else own.coverage,
        )

    def covers(self, name: str) -> bool:
        """Whether the pair decides: named in ``pairs``, or no pair is."""
        return not self.pairs or name in self.pairs

    def check_pairs(self, keys: "list[GroupKey]") -> Self:
        """Raises ConfigError for a gated pair that neither run has, with the nearest name: a typo gates
        nothing."""
        known = sorted({key.pair for key in keys})
        for name in self.pairs:
            if name not in known:
                hint = nearest(name, known) or f" (there are {', '.join(known) or 'none'})"
                raise ConfigError(f"gate: neither run has a pair '{name}'{hint}")
        return self
