"""Metrics that a scorer brings along, and which no function of references and predictions could compute."""

from metrics.errors import ConfigError

OWN_METRICS = {
    "reward": "reward_model",
    "llm_judge": "llm_judge",
    "llm_judge_agreement": "llm_judge",
    "llm_judge_corrected": "llm_judge",
    "ensemble": "ensemble",
    "filter_agreement": "agreement",
}
"""Metric → the scorer type that gives it."""


def refuse_without_scorer(metric: str) -> None:
    """Raises ConfigError where a metric list asks for a number that only another scorer has."""
    kind = OWN_METRICS.get(metric)
    if kind is not None:
        raise ConfigError(
            f"metric {metric!r} comes from a scorer; add scorer: {{type: {kind}, …}} to the benchmark"
        )
