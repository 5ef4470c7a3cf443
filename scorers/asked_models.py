"""Which models a scorer's config asks: judges and reward endpoints, wherever in an ensemble they stand."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scorers.config import EnsembleConfig, JudgeConfig, RewardModelConfig, ScorerConfig
from scorers.reward import REWARD


@dataclass(frozen=True)
class GradingModel:
    """A model by its name; ``model`` holds the other keys of an entry of its own, and is empty for one of
    ``models:``.

    ``sampling`` are the parameters that the scorer asks with.
    """

    name: str
    model: Mapping[str, Any]
    sampling: Mapping[str, Any]


def grading_models(config: ScorerConfig | None) -> tuple[GradingModel, ...]:
    """Every model that the scorer asks, each with each sampling once."""
    found: list[GradingModel] = []
    for entry in _entries(config):
        if entry not in found:
            found.append(entry)
    return tuple(found)


def _entries(config: ScorerConfig | None) -> Iterator[GradingModel]:
    if isinstance(config, JudgeConfig):
        for judge in config.judges:
            yield GradingModel(judge.name, judge.entry, config.sample_params)
    elif isinstance(config, RewardModelConfig) and config.model is not None:
        entry = {"name": config.model} if isinstance(config.model, str) else dict(config.model)
        rest = {key: value for key, value in entry.items() if key != "name"}
        yield GradingModel(str(entry.get("name", REWARD)), rest, config.sample_params)
    elif isinstance(config, EnsembleConfig):
        for member in config.members:
            yield from _entries(member.scorer)
