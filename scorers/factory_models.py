"""Building the scorers that ask models: reward models and judges."""

from metrics.config import MetricConfig
from metrics.errors import ConfigError
from scorers.base import Scorer
from scorers.calls import check_call
from scorers.config import JudgeConfig, RewardModelConfig, ScoringConfig
from scorers.filters.pipeline import Resolve
from scorers.judge.calibration import Calibration
from scorers.judge.scorer import LLMJudgeScorer, judge_metric, judge_metrics
from scorers.metric_lists import with_own_metrics
from scorers.prompts import Prompt, compiled
from scorers.reward import REWARD, RewardModelScorer


def reward_scorer(config: ScoringConfig, chosen: RewardModelConfig, resolve: Resolve) -> Scorer:
    """A reward model: the user's function, checked for its keywords, or the endpoint's name and prompt."""
    _only_text(config, "reward_model")
    function = None if chosen.function is None else resolve(chosen.function)
    if function is not None and chosen.function is not None:
        check_call(chosen.function, function, ("responses", "docs"), tuple(chosen.params))
    model = chosen.model if isinstance(chosen.model, str) else str((chosen.model or {}).get("name", REWARD))
    metrics = with_own_metrics(config, resolve, (MetricConfig(metric=REWARD),))
    return RewardModelScorer(
        metrics, function, chosen.params, model, Prompt(chosen.prompt), chosen.sample_params
    )


def judge_scorer(config: ScoringConfig, chosen: JudgeConfig, resolve: Resolve) -> Scorer:
    """A judge: its templates compiled, its calibration counted where the judge's verdicts are given with
    it."""
    _only_text(config, "llm_judge")
    messages = None if chosen.messages is None else tuple(turn.model_dump() for turn in chosen.messages)
    prompt = Prompt(chosen.prompt, messages, chosen.system_prompt)
    if chosen.pairwise is not None:
        compiled(chosen.pairwise.baseline)
    calibration = _calibration(chosen)
    metrics = {
        name: tuple(judge_metric(metric, calibration) for metric in own)
        for name, own in with_own_metrics(config, resolve, judge_metrics(chosen)).items()
    }
    return LLMJudgeScorer(metrics, chosen, prompt, calibration)


def _calibration(chosen: JudgeConfig) -> Calibration | None:
    rows = chosen.calibration if isinstance(chosen.calibration, tuple) else ()
    judged = [row for row in rows if row.judge is not None]
    if not judged:
        return None
    if len(judged) < len(rows):
        raise ConfigError(
            f"calibration: {len(judged)} of {len(rows)} rows have a verdict of the judge; give it in all "
            "rows or in none"
        )
    return Calibration.of([row.human for row in judged], [bool(row.judge) for row in judged])


def _only_text(config: ScoringConfig, kind: str) -> None:
    if config.output_type != "generate_until":
        raise ConfigError(f"scorer {kind!r} looks at text, and output_type is {config.output_type}")
