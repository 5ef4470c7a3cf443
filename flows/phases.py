"""The two phases of an evaluation: asking models, and scoring what they answered."""

from pathlib import Path

from flows.config import EvalConfig
from flows.options import Phase, RunOptions
from metrics.errors import ConfigError
from tasks.models.config import ModelConfig, ReplayConfig

RESPONSES = "responses.jsonl"


def for_phase(config: EvalConfig, options: RunOptions) -> EvalConfig:
    """The config of the phase: scoring a folder that holds responses replays them, whatever model they came
    from.

    The recorded responses keep the names of their models, so that results and caches are the same as if
    they were asked for now.
    """
    if options.phase is not Phase.SCORE or options.output is None:
        return config
    recorded = Path(options.output) / RESPONSES
    if not recorded.is_file():
        return config
    models = tuple(_replayed(model, recorded.resolve()) for model in config.models)
    return config.model_copy(update={"models": models})


def refuse_asking(options: RunOptions, unanswered: list[str]) -> None:
    """Raises ConfigError where the scoring phase would need a model."""
    if options.phase is Phase.SCORE and unanswered:
        raise ConfigError(
            f"--phase score asks no model, and {', '.join(unanswered)} has requests without an answer: run "
            f"--phase infer first, name a folder with {RESPONSES} by --output, or give the model type replay"
        )


def _replayed(model: ModelConfig, recorded: Path) -> ModelConfig:
    if model.type == "replay":
        return model
    return model.model_copy(update={"type": "replay", "config": ReplayConfig(path=str(recorded))})
