"""Calibrations of judges: read from their files, and the step that asks the judge for what they lack."""

from pathlib import Path
from typing import Any

from flows.config import EvalConfig
from metrics.errors import ConfigError, NightjarError
from scorers.base import Scorer
from scorers.config import EnsembleConfig, JudgeConfig, ScorerConfig, ScoringConfig
from tasks.datasets.files import read_rows
from tasks.pair import PairSetup, pending
from tasks.steps import Step

JUDGE, CORRECTED = "llm_judge", "llm_judge_corrected"


def read_calibrations(chosen: ScorerConfig | None, base_dir: str | Path) -> ScorerConfig | None:
    """The scorer's config with the rows of calibration files in place of their names, ensembles' members
    too.

    The rows and not the name then are in every cache key. Raises ConfigError naming the file, and the row
    where one is at fault.
    """
    if isinstance(chosen, JudgeConfig) and isinstance(chosen.calibration, str):
        try:
            rows = [row.value for row in read_rows(Path(base_dir) / Path(chosen.calibration).expanduser())]
        except NightjarError as error:
            raise ConfigError(f"scorer.calibration: {error}") from error
        if not rows:
            raise ConfigError(f"scorer.calibration: {chosen.calibration} is empty: human verdicts are due")
        return chosen.with_calibration(rows)
    if isinstance(chosen, EnsembleConfig):
        members = tuple(
            member.model_copy(update={"scorer": read_calibrations(member.scorer, base_dir)})
            for member in chosen.members
        )
        return chosen.model_copy(update={"members": members})
    return chosen


def calibration_step(
    config: EvalConfig, scoring: ScoringConfig, scorer: Scorer, identity: dict[str, Any]
) -> Step[PairSetup] | None:
    """The step that scores the calibration's answers, None where the judge has nothing to judge.

    ``identity`` is the scorer's. Raises NightjarError for what would only come out after all was asked: an
    answer that the prompt can't be made for, human verdicts that are all the same.
    """
    batch = pending(scorer)
    if batch is None:
        return None
    source = scoring.filters[0].name
    metric = next(entry for entry in scorer.get_metrics(source) if entry.entry == JUDGE)
    scorer.requests(batch, metric)
    _refuse_one_sided(scoring.scorer)
    setup = PairSetup(
        benchmark=config.name, scoring=scoring, filter=source, metric=metric.name, base_dir=config.base_dir
    )
    return Step(name="score the calibration", identity={"calibration": identity}, setup=setup)


def _refuse_one_sided(chosen: ScorerConfig | None) -> None:
    rows = chosen.calibration if isinstance(chosen, JudgeConfig) else None
    human = {row.human for row in rows} if isinstance(rows, tuple) else set()
    if len(human) == 1:
        said = "right" if human.pop() else "wrong"
        raise ConfigError(
            f"scorer.calibration: people called all answers {said}; sensitivity and specificity need some of "
            "both"
        )
