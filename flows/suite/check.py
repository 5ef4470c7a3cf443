"""What of a suite can be refused before its night: configs, the gate's pairs, the baseline."""

from flows.config.schema import EvalConfig
from flows.suite.config import SuiteConfig
from flows.suite.night import SuiteOptions, plan_night
from metrics.errors import ConfigError, nearest
from scorers.factory import build_scorer
from tasks.history.record import baseline_nights, past_nights
from tasks.store.storage import Store
from tasks.usercode.load import resolver


def check_suite(suite: SuiteConfig, options: SuiteOptions) -> None:
    """Raises ConfigError for configs that are refused, a gate on pairs that no benchmark has, an unknown
    baseline.

    The flow itself lets a refused benchmark fail alone; who types the command wants to know at once.
    """
    night = plan_night(suite, options, "check")
    if refusals := [entry.refusal for entry in night.evaluations if entry.refusal is not None]:
        raise ConfigError("\n".join(dict.fromkeys(refusals)))
    if suite.gate is not None and suite.gate.pairs:
        pairs = {
            name for entry in night.evaluations if entry.config is not None for name in _pairs(entry.config)
        }
        for name in suite.gate.pairs:
            if _without_reduction(name) not in pairs:
                raise ConfigError(
                    f"gate: no benchmark of the suite has a pair '{name}'{nearest(name, sorted(pairs))}"
                )
    store = Store(night.store)
    store.check_readable()
    baseline_nights(store, past_nights(store, night.slug), night.baseline, suite.nights)


def _pairs(config: EvalConfig) -> list[str]:
    """The pairs of a benchmark as "metric,filter"."""
    scorer = build_scorer(config.scoring(), resolver(config.base_dir))
    names = [entry.name for entry in config.filters()]
    return [f"{metric.name},{name}" for name in names for metric in scorer.get_metrics(name)]


def _without_reduction(name: str) -> str:
    """``metric,filter`` of ``reduction(metric),filter``."""
    metric, _, filter_name = name.rpartition(",")
    return f"{metric.partition('(')[2].removesuffix(')') or metric},{filter_name}" if "(" in metric else name
