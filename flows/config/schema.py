"""Which keys an evaluation's config has, and which options one run of it.

``EvalConfig`` is one flat set of keys, composed of what each layer says about its own. It is what a YAML file
holds, what the flow takes as its parameter, and what the Prefect UI shows as a form; so it survives a round
trip through JSON, ``base_dir`` included. ``RunOptions`` holds what is not part of what is evaluated.
"""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, field_serializer, model_validator

from metrics.config import (
    FunctionRef,
    MetricConfig,
    OneOrMany,
    PlacedError,
    StatisticsConfig,
    Strict,
    TakesFunction,
)
from metrics.types import CutOff, OutputType
from scorers.config import ITEM_SECONDS, DefaultScorerConfig, FilterConfig, NamedScorer, ScoringConfig
from scorers.letters import ACC_LETTER
from scorers.metric_lists import DEFAULT_METRICS
from tasks.benchmarks.config import BenchmarkFields
from tasks.comparison.compare import Gate
from tasks.datasets.selection import Selection
from tasks.inspecting import InspectTask
from tasks.models.config import Answers, ErrorBudget, ModelConfig, Prices, RunLimits, SampleParams
from tasks.models.providers.provider import provider_of
from tasks.models.registry import is_recorded, is_reference
from tasks.publishers import ExportForm, PublishConfig
from tasks.store.durations import Seconds
from tasks.verdicts.config import EvaluationMethodConfig, EvaluationMetricConfig, lacking_samples

MUTUAL_INFORMATION_METRICS: Final = frozenset({"acc_mutual_info"})
FAILED_REQUESTS: Final = "failed"
"""What ``refresh`` calls the requests that ended without an answer, settled ones too."""


FIRST_TOKEN_ALONE: Final = SampleParams(temperature=0, max_tokens=1, logprobs=True, top_logprobs=20)
"""How the first token is asked for, unless the config says otherwise."""


def _of_a_type(value: Any) -> Any:
    if isinstance(value, dict) and not isinstance(value.get("type", ""), str):
        raise PlacedError("expected text, the name of a model type", "type")
    return value


Model = Annotated[ModelConfig, BeforeValidator(_of_a_type)]


class EvalConfig(BenchmarkFields):
    """One benchmark, the models to evaluate on it, and how their answers are scored."""

    models: tuple[Model, ...] = Field(default=(), description="Models to evaluate")
    inspect: InspectTask | None = Field(
        default=None, description="A task of Inspect, which brings items, prompts and scores"
    )
    inspected: dict[str, Any] | None = Field(
        default=None, description="What inspect_ai said of that task (InspectFound)"
    )
    sample_params: SampleParams = Field(default_factory=SampleParams, description="How answers are sampled")
    filter_list: tuple[FilterConfig, ...] | None = Field(
        default=None,
        description="Named chains of filters; without it one named none, whole responses",
        json_schema_extra={"minItems": 1},
    )
    metric_list: Annotated[tuple[MetricConfig, ...], OneOrMany, TakesFunction()] | None = Field(
        default=None, description="Metrics of the filters that have no list of their own"
    )
    process_results: FunctionRef | None = Field(
        default=None, description="User function 'file.py:function' that scores an item"
    )
    scorer: Annotated[NamedScorer | None, TakesFunction()] = Field(
        default=None, description="Chosen by output_type unless given"
    )
    evaluation_methods: tuple[EvaluationMethodConfig, ...] = Field(
        default=(), description="Judgements of every response, each under a label"
    )
    metrics: tuple[EvaluationMetricConfig, ...] = Field(
        default=(), description="Metrics over evaluation results, by facets and label"
    )
    facets: Annotated[tuple[str, ...], OneOrMany] = Field(
        default=("model_name", "prompt_template"),
        description="What results are grouped by: model_name, prompt_template, fields of the items (topic, "
        "item.topic), metadata of the answers (metadata.step)",
    )
    statistics: StatisticsConfig = Field(default_factory=StatisticsConfig, description="Error bars")
    answers: Answers = Field(
        default="reuse",
        description="Which kept answers are used: the newest (reuse), those that this night asked "
        "for (fresh), or those that are not too old ({max_age: 20h})",
    )
    canaries: int = Field(
        default=0,
        ge=0,
        description="Kept requests that are asked again before answers are reused: has the model changed? "
        "Two must differ: 5 find a change of half of the answers with a chance of .8, 29 one of a tenth",
    )
    errors: ErrorBudget = Field(default_factory=ErrorBudget, description="How many requests may fail")
    limits: RunLimits = Field(default_factory=RunLimits, description="Where inference stops")
    prices: Prices = Field(
        default_factory=Prices, description="Prices per million tokens, by model, and their currency"
    )
    publish: tuple[PublishConfig, ...] = Field(
        default=(),
        description="Where the numbers go besides the run's folder; what is away fails its own step only",
    )
    export: tuple[ExportForm, ...] = Field(
        default=(), description="Other programs in whose form the samples are written, too: inspect"
    )
    timeout: Seconds | None = Field(
        default=None, description="How long a run may take, such as 6h; then it ends under the name TimedOut"
    )
    item_timeout: Seconds = Field(
        default=ITEM_SECONDS,
        description="CPU time that a pattern or a formula may take for one item; what takes more is unscored",
    )
    config_file: str | None = Field(
        default=None, description="Name of the file in base_dir that this was read from"
    )

    @model_validator(mode="before")
    @classmethod
    def _has_the_metric_of_letters(cls, value: Any) -> Any:
        """A benchmark of lm-evaluation-harness whose choices are asked for by letters: its metrics are of
        likelihoods, and its filter would keep one of the orders."""
        asked = value.get("choices_by") if isinstance(value, dict) else None
        asked = asked.get("ask") if isinstance(asked, dict) else getattr(asked, "ask", asked)
        if asked in (None, "likelihood") or not value.get("harness"):
            return value
        listed = [entry for entry in _entries(value.get("metric_list")) if _of(entry, "metric") == ACC_LETTER]
        return {
            **value,
            "metric_list": listed or [{"metric": ACC_LETTER}],
            "filter_list": None,
            "process_results": None,
            "mutual_information": False,
        }

    @model_validator(mode="before")
    @classmethod
    def _asks_for_mutual_information(cls, value: Any) -> Any:
        if isinstance(value, dict) and "mutual_information" not in value and _names_mutual_information(value):
            return {**value, "mutual_information": True}
        return value

    @model_validator(mode="after")
    def _is_sound(self) -> "EvalConfig":
        for key in ("models", "filter_list", "evaluation_methods", "metrics", "publish"):
            _refuse_twice(key, [entry.name for entry in getattr(self, key) or ()])
        _refuse_twice("facets", self.facets)
        if self.filter_list is not None and not self.filter_list:
            raise PlacedError("is empty; leave it out for one filter named none", "filter_list")
        own = [entry.metric_list is not None for entry in self.filter_list or ()]
        if self.metric_list and own and all(own) and self.scorer is None and self.harness is None:
            raise PlacedError(
                "each filter has a list of its own, so none of these is computed; name them there",
                "metric_list",
            )
        if self.process_results is not None and not any(
            entry.metric_list or self.metric_list for entry in self.filters()
        ):
            raise PlacedError(
                "needs metric_list beside it: the names of the metrics it returns", "process_results"
            )
        kind = None if self.scorer is None or self.harness is not None else self.scorer.type
        if self.process_results is not None and kind not in (None, "process_results"):
            said = f"is not called beside scorer: {kind}; leave one of them out"
            raise PlacedError(said, "process_results")
        if self.asks_letters and self.evaluation_methods:
            raise PlacedError(
                "would get the letter of an answer and the text of the right choice; leave them out: "
                f"choices asked for by their letters have the metric {ACC_LETTER} alone",
                "evaluation_methods",
            )
        if self.metrics and not self.evaluation_methods:
            raise PlacedError(
                "are computed over the results of evaluation_methods, and there are none; metrics of the "
                "responses themselves go into metric_list",
                "metrics",
            )
        for index, model in enumerate(self.models):
            drawn = self.sampling(model)
            if (drawn.n or 1) > 1 and "num_samples" not in drawn.model_fields_set:
                at: tuple[str | int, ...] = () if model.sample_params.n is None else ("models", index)
                raise PlacedError(
                    f"asks for {drawn.n} answers in one request, but an item has one where num_samples is "
                    f"not given; give num_samples: {drawn.n}, or leave n out",
                    *at,
                    "sample_params",
                    "n",
                )
            speaks = self.tools is not None or self.turns is not None
            if speaks and not provider_of(model, Path(self.base_dir)).takes_chats:
                raise PlacedError(
                    "completions continues one text; tools and turns need chat",
                    "models",
                    index,
                    "config",
                    "api",
                )
        for index, metric in enumerate(self.metrics):
            most = self.samples_together(self.facets if metric.facets is None else metric.facets)
            for sentence in lacking_samples([metric], self.fewest_samples(), most):
                raise PlacedError(sentence, "metrics", index)
        return self

    @field_serializer("models")
    def _keep_unset(self, models: tuple[ModelConfig, ...]) -> list[dict[str, Any]]:
        # sample_params of a model override what they set: written out in full they would override everything.
        entries = [model.model_dump(mode="json", exclude_unset=True) for model in models]
        return [{key: value for key, value in entry.items() if value != {}} for entry in entries]

    def scoring(self) -> ScoringConfig:
        """What the scorer factory needs. With ``evaluation_methods`` there is no default metric."""
        none = () if self.evaluation_methods else None
        return ScoringConfig(
            output_type=self.output_type,
            filter_list=self.filter_list or (),
            metric_list=self.metric_list if self.metric_list is not None else none,
            process_results=self.process_results,
            scorer=self.scorer,
            letters=self.letters,
            cut_off=self.cut_off_as(),
            players=tuple(model.name for model in self.models),
        )

    @property
    def asked_type(self) -> OutputType:
        """What models are asked for: text where choices are asked for by letters, else the output type."""
        return "generate_until" if self.asks_letters else self.output_type

    def cut_off_as(self) -> CutOff:
        """How an answer is scored that was cut off before it began; of letters the harness knows nothing."""
        return self.cut_off or ("wrong" if self.harness is None or self.asks_letters else "text")

    def filters(self) -> tuple[FilterConfig, ...]:
        """The filters with the metrics of each: its own list, else the common one, else the default ones.

        Without ``filter_list`` there is one named none, for whole responses. The list is None where only
        the scorer knows the metrics: those of ``process_results``, or of a scorer that brings its own.
        """
        common = self._common()
        return tuple(
            entry if entry.metric_list is not None else entry.model_copy(update={"metric_list": common})
            for entry in self.scoring().filters
        )

    def _common(self) -> tuple[MetricConfig, ...] | None:
        if self.process_results is not None:
            return None
        if self.metric_list is not None or self.evaluation_methods:
            return self.metric_list or ()
        if self.asks_letters:
            return (MetricConfig(metric=ACC_LETTER),)
        plain = self.scorer is None or isinstance(self.scorer, DefaultScorerConfig)
        return (
            tuple(MetricConfig(metric=name) for name in DEFAULT_METRICS[self.output_type]) if plain else None
        )

    def sampling(self, model: ModelConfig) -> SampleParams:
        """A model's sampling parameters: its own over the common ones. Log-likelihoods are not drawn: each is
        asked for once, whatever is said of answers."""
        if self.asked_type != "generate_until":
            return SampleParams()
        own = self.sample_params.merged(model.sample_params)
        if self.choices_by is None or self.choices_by.ask != "first_token":
            return own
        alternatives = FIRST_TOKEN_ALONE.merged(own)
        one = {"max_tokens": None} if own.max_completion_tokens is not None else {}
        return alternatives.model_copy(update=one)

    def samples_taken(self) -> tuple[int, ...]:
        """Every number of samples that a model gives an item, in order."""
        taken = {self.sampling(model).num_samples for model in self.models}
        return tuple(sorted(taken or {self.sample_params.num_samples}))

    def fewest_samples(self) -> int:
        """The smallest number of samples that any model gives an item."""
        return self.samples_taken()[0]

    def samples_together(self, facets: Sequence[str]) -> int | None:
        """How many samples of an item the smallest group of these facets has at most: those of all models and
        prompts that no facet tells apart. None where only a recording or a folder of checkpoints tells."""
        recorded = any(is_recorded(model.type) or is_reference(model.type) for model in self.models)
        prompts = 1 if "prompt_template" in facets else len(self.prompts())
        if recorded and prompts == 1 and "prompt_template" not in facets:
            return None  # a single prompt goes by the names that the file has
        if "model_name" not in facets and any(model.checkpoints for model in self.models):
            return None
        together: Counter[str] = Counter()
        for model in self.models:
            own = "model_name" in facets, not recorded and "metadata.model_id" in facets
            name = model.name if own[0] else model.served_name if own[1] else ""
            together[name] += self.sampling(model).num_samples * prompts
        return min(together.values(), default=self.sample_params.num_samples * prompts)


def _refuse_twice(key: str, names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise PlacedError(f"'{name}' is there twice; give each entry a name of its own", key, index)


def _names_mutual_information(value: dict[str, Any]) -> bool:
    filters = _entries(value.get("filter_list"))
    lists = [value.get("metric_list"), *(_of(entry, "metric_list") for entry in filters)]
    names = (_of(entry, "metric") or entry for entries in lists for entry in _entries(entries))
    return any(isinstance(name, str) and name in MUTUAL_INFORMATION_METRICS for name in names)


def _entries(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else () if value is None else (value,)


def _of(entry: Any, key: str) -> Any:
    return entry.get(key) if isinstance(entry, dict) else getattr(entry, key, None)


class Phase(StrEnum):
    """Which part of an evaluation a run does."""

    ALL = "all"
    INFER = "infer"
    SCORE = "score"


class Against(Strict):
    """What a run is compared with, and by which gate: one that stops is looked at while the run asks."""

    gate: Gate = Field(description="The gate")
    baseline: tuple[tuple[str, ...], ...] = Field(
        min_length=1, description="Runs of each night of the baseline, oldest first: folders or ids"
    )
    seed: int = Field(default=0, ge=0, description="Seed of the random order of the items")


class RunOptions(Strict):
    """Options of a run, as on the command line."""

    limit: int | None = Field(default=None, ge=1, description="Only the first items")
    samples: str | None = Field(
        default=None, description="Which items: positions from 0 as 7,9,100-120, or random:200@SEED"
    )
    shuffle: bool = Field(default=False, description="With limit: random items, always the same ones")
    output: str | None = Field(
        default=None, min_length=1, description="Folder of the run's files; default: results/<run id>"
    )
    store: str | None = Field(
        default=None, min_length=1, description="URI of the artifact store; default: a local folder"
    )
    run_name: str | None = Field(default=None, description="Name of the run; default: benchmark and time")
    run_id: str | None = Field(
        default=None, description="Id of the run in the history; default: from name and time"
    )
    night: str | None = Field(
        default=None,
        description="The night that answers are asked for in; default: the outermost flow run's id",
    )
    phase: Phase = Field(
        default=Phase.ALL, description="infer: responses only; score: responses are there already"
    )
    workers: int | None = Field(
        # Not None: a script without a guard around its main part would be run again by each process.
        default=1,
        ge=1,
        description="Processes that compute; 1: the run's own alone; null: one a core for large runs",
    )
    against: Against | None = Field(default=None, description="The baseline and the gate of the run")
    command: str | None = Field(default=None, description="How it was started, for who wants to run it again")
    refresh: tuple[str, ...] = Field(
        default=(),
        description="Stages, or pairs as 'filter:metric', to compute whatever the store holds; 'failed': to "
        "ask again what has no answer, refusals and filtered answers too",
    )

    @model_validator(mode="after")
    def _can_select(self) -> "RunOptions":
        self.selection()
        return self

    def selection(self) -> Selection:
        """Which items the run takes."""
        return Selection(samples=self.samples, shuffle=self.shuffle, limit=self.limit)


DEFAULT_OPTIONS = RunOptions()
