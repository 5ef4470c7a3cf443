"""What a config says about filters.

What a config says about programs stands beside the records of those that a scorer wants run, and of what
came of them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_serializer,
    model_validator,
)

from metrics.aliases import nearest
from metrics.config import (
    BelongsTo,
    FunctionRef,
    Gathering,
    MetricConfig,
    OneOrMany,
    RunsProgram,
    Strict,
    TakesFunction,
)
from metrics.names import check_name
from metrics.registry import plugins
from metrics.types import CutOff, OutputType
from scorers.judge.config import (
    ChoiceReading,
    JudgeConfig,
    JudgeMessage,
    JudgeModel,
    Reading,
    grade_range,
)

Verdict = Literal["passed", "failed", "timeout", "memory", "output", "sandbox_error"]
Compare = Literal["lines", "tokens", "exact"]


class ProgramLimits(Strict):
    """What one run of a program may take; memory, processes and output are those of all its processes
    together."""

    seconds: float = Field(
        10.0, gt=0, le=3_600, description="Wall-clock time of a run, and CPU time of a process"
    )
    memory_mb: int = Field(1_024, ge=64, description="Memory")
    processes: int = Field(16, ge=1, description="Processes and threads at once")
    output_kb: int = Field(256, ge=1, le=65_536, description="What it may print, stdout and stderr together")
    disk_mb: int = Field(64, ge=1, description="Its temporary folder, and any one file")


@dataclass(frozen=True)
class Program:
    """A Python program, and how it is judged.

    Without ``inputs`` it has passed when it reached its last line. With them each is the stdin of a run of
    its own, which has passed when it printed ``expected``, the text beside it: that never comes near the
    program. ``interpreter`` is the path of the Python that runs it; empty: our own, with the standard library
    alone. ``script`` runs it as ``__main__``; otherwise as ``exec`` does in an empty namespace.
    """

    text: str
    limits: ProgramLimits
    inputs: tuple[str, ...] | None = None
    expected: tuple[str, ...] = ()
    compare: Compare = "lines"
    interpreter: str = ""
    script: bool = True


@dataclass(frozen=True)
class ProgramRun:
    """How one run ended.

    ``verdict`` is passed where the program reached its end within the limits; of a run with input that says
    nothing yet about what it printed. ``cpu_seconds`` sums all its processes; ``stdout`` and ``stderr`` are
    cut where the limit was.
    """

    verdict: Verdict
    exit_code: int | None = None
    signal: int | None = None
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    stdout: str = ""
    stderr: str = ""


KEPT_OUTPUT = 4_000
"""Characters of each stream that are kept for people to look at."""


@dataclass(frozen=True)
class ProgramOutcome:
    """What came of a program, all its runs together.

    ``verdict`` is passed if every run has, else that of the first that has not; ``cases`` are those of the
    runs in order, with as many as there were inputs: those after a run that took too much are its verdict,
    too, since they were not run. ``exit_code`` to ``stderr`` are of the run that decided. ``sandbox`` names
    what ran it, ``error`` says why it could not: then nothing is known of the program.
    """

    verdict: Verdict
    cases: tuple[Verdict, ...] = ()
    exit_code: int | None = None
    signal: int | None = None
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    stdout: str = ""
    stderr: str = ""
    sandbox: str = ""
    error: str | None = None

    @property
    def share(self) -> float:
        """Share of its cases that passed, from 0 to 1; of a program without cases whether it did."""
        verdicts = self.cases or (self.verdict,)
        return sum(verdict == "passed" for verdict in verdicts) / len(verdicts)

    def as_dict(self) -> dict[str, Any]:
        """As it is kept."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "ProgramOutcome":
        """The inverse of ``as_dict``."""
        return cls(**{**value, "cases": tuple(value["cases"])})


def outcome_of(program: Program, runs: Sequence[ProgramRun], sandbox: str) -> ProgramOutcome:
    """The runs of a program, judged by what they printed.

    >>> limits = ProgramLimits()
    >>> doubling = Program("", limits, inputs=("1", "2", "3"), expected=("2", "4", "6"))
    >>> right, wrong = ProgramRun("passed", stdout="2\\n"), ProgramRun("passed", stdout="5\\n")
    >>> runs = [right, wrong, ProgramRun("timeout")]
    >>> outcome_of(doubling, runs, "none").cases
    ('passed', 'failed', 'timeout')
    """
    verdicts: list[Verdict] = []
    for place, run in enumerate(runs):
        right = program.inputs is None or same_output(run.stdout, program.expected[place], program.compare)
        verdicts.append(run.verdict if run.verdict != "passed" or right else "failed")
    decided = next((place for place, verdict in enumerate(verdicts) if verdict != "passed"), 0)
    shown = runs[decided]
    if program.inputs is not None:
        verdicts += [verdicts[-1]] * (len(program.inputs) - len(verdicts))
    return ProgramOutcome(
        verdict=verdicts[decided],
        cases=tuple(verdicts) if program.inputs is not None else (),
        exit_code=shown.exit_code,
        signal=shown.signal,
        cpu_seconds=round(sum(run.cpu_seconds for run in runs), 4),
        wall_seconds=round(sum(run.wall_seconds for run in runs), 4),
        stdout=_cut(shown.stdout),
        stderr=_cut(shown.stderr),
        sandbox=sandbox,
    )


def same_output(printed: str, expected: str, compare: Compare) -> bool:
    """Whether a run printed what was expected: the same lines, white space at their ends and empty lines at
    the end aside; the same words; or the very same text.

    >>> same_output("1 2 \\n\\n", "1 2", "lines"), same_output("1  2", "1 2", "lines")
    (True, False)
    >>> same_output("1\\n2", "1 2", "tokens"), same_output("1\\n", "1", "exact")
    (True, False)
    """
    if compare == "exact":
        return printed == expected
    if compare == "tokens":
        return printed.split() == expected.split()
    return _lines(printed) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _cut(text: str) -> str:
    """The beginning and the end of a long text: the end of a traceback says most."""
    half = KEPT_OUTPUT // 2
    return text if len(text) <= KEPT_OUTPUT else f"{text[:half]}\n…\n{text[-half:]}"


def read_cases(value: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The inputs and expected outputs of an item's field; raises ValueError saying what was expected.

    It holds a list of mappings with ``input`` and ``output``, a mapping with the lists ``inputs`` and
    ``outputs`` (APPS), or the JSON text of either (LiveCodeBench).

    >>> read_cases('[{"input": "1", "output": "2", "testtype": "stdin"}]')
    (('1',), ('2',))
    >>> read_cases({"inputs": ["1", "2"], "outputs": ["2", 4]})
    (('1', '2'), ('2', '4'))
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"is a text that is no JSON ({error})") from None
    if isinstance(value, Mapping):
        inputs, outputs = value.get("inputs"), value.get("outputs")
        if value.get("fn_name"):
            raise ValueError("calls a function (fn_name); only programs that read stdin are run by cases")
    elif isinstance(value, list) and all(isinstance(case, Mapping) for case in value):
        kinds = {str(case.get("testtype", "stdin")) for case in value}
        if kinds - {"stdin"}:
            raise ValueError(f"has cases of testtype {', '.join(sorted(kinds))}; only stdin is run by cases")
        inputs = [case.get("input") for case in value]
        outputs = [case.get("output") for case in value]
    else:
        inputs = outputs = None
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise ValueError("is neither a list of {input, output} nor {inputs: […], outputs: […]} of one length")
    if not inputs or any(entry is None for entry in (*inputs, *outputs)):
        raise ValueError("has no case, or one without input or output")
    return tuple(map(_text, inputs)), tuple(map(_text, outputs))


def _text(value: Any) -> str:
    if isinstance(value, list):  # APPS: lines
        return "\n".join(map(str, value))
    return value if isinstance(value, str) else str(value)


class FilterStepConfig(Gathering):
    """One step: a registered name or ``file.py:fn``, and its arguments, which are all the other keys.

    >>> FilterStepConfig.model_validate({"function": "take_first_k", "k": 4}).kwargs
    {'k': 4}
    """

    ALONE = "function"

    function: FunctionRef = Field(description="Registered name, or file.py:fn")
    depends_on: tuple[str, ...] = Field((), description="Files and folders that its function reads unseen")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Arguments of the step")

    @model_serializer
    def _flat(self) -> dict[str, Any]:
        named = {"depends_on": list(self.depends_on)} if self.depends_on else {}
        return {"function": self.function, **named, **self.kwargs}


class FilterConfig(Strict):
    """One entry of ``filter_list``: a named chain of steps, and the metrics of its predictions.

    Without ``metric_list`` the benchmark's own list counts; without steps the whole response is the
    prediction.
    """

    name: str = Field(min_length=1, description="Shown beside the metric: metric,name")
    filter: Annotated[tuple[FilterStepConfig, ...], OneOrMany, TakesFunction()] = Field(
        (), description="Steps, first to last"
    )
    metric_list: Annotated[tuple[MetricConfig, ...], OneOrMany, TakesFunction()] | None = Field(
        None, description="Metrics of this filter"
    )

    @model_validator(mode="after")
    def _name_can_be_shown(self) -> "FilterConfig":
        if "," in self.name:
            raise ValueError(f"filter name {self.name!r} can't hold a comma: results are keyed metric,filter")
        return self

    @field_validator("name")
    @classmethod
    def _name_is_a_name(cls, value: str) -> str:
        return check_name(value)


class DefaultScorerConfig(Strict):
    """A scorer without knobs: what the factory takes by itself when the config names none."""

    type: Literal["generation", "loglikelihood", "process_results"] = Field(description="Its name")


class RewardModelConfig(Strict):
    """A reward model beside the benchmark's metrics: a function ``fn(responses, docs)``, or a model that is
    asked."""

    type: Literal["reward_model"] = Field("reward_model", description="Its name")
    function: FunctionRef | None = Field(None, description="file.py:fn, one number per response")
    depends_on: Annotated[tuple[str, ...], BelongsTo("function")] = Field(
        (), description="Files and folders that the function reads unseen"
    )
    params: Annotated[dict[str, Any], BelongsTo("function")] = Field(
        default_factory=dict, description="Further keywords of the function"
    )
    model: str | dict[str, Any] | None = Field(
        None, description="Entry of models:, or a model's own entry: the endpoint"
    )
    prompt: Annotated[str, BelongsTo("model")] = Field(
        "{{ response }}", description="Jinja2; what the endpoint is asked to rate"
    )
    sample_params: Annotated[dict[str, Any], BelongsTo("model")] = Field(
        default_factory=dict, description="Sampling parameters of the endpoint"
    )

    @property
    def model_name(self) -> str:
        """Name of the endpoint, an entry of ``models:`` or its own entry; ``reward`` where that has none."""
        return self.model if isinstance(self.model, str) else str((self.model or {}).get("name", "reward"))

    @model_validator(mode="after")
    def _one_source(self) -> "RewardModelConfig":
        if (self.function is None) == (self.model is None):
            raise ValueError(
                "a reward model is either function: file.py:fn or model: (an endpoint), one of the two"
            )
        return self


class EnsembleMember(Strict):
    """One part of an ensemble: a scorer, the one metric it gives, and its weight."""

    metric: Annotated[MetricConfig | None, TakesFunction()] = Field(
        None, description="Default: the scorer's own metric (reward, llm_judge)"
    )
    weight: float = Field(1.0, gt=0, description="Of this member beside the others")
    scorer: Annotated["ScorerConfig | None", TakesFunction()] = Field(
        None, description="Default: by output type, as without an ensemble"
    )


class RecordedConfig(Strict):
    """Scores that came with recorded responses; the metric ``recorded`` takes each from a ``field``."""

    type: Literal["recorded"] = Field("recorded", description="Its name")


class EnsembleConfig(Strict):
    """Weighted combination of other scorers' numbers, sample by sample, under the metric ``ensemble``."""

    type: Literal["ensemble"] = Field("ensemble", description="Its name")
    members: tuple[EnsembleMember, ...] = Field(min_length=1, description="The scorers that are combined")
    normalize: bool = Field(True, description="Divide by the sum of the weights: a mean; else a weighted sum")

    @model_validator(mode="after")
    def _asks_each_model_by_a_name(self) -> "EnsembleConfig":
        """Replies are found by the name of who was asked."""
        entries: dict[str, Mapping[str, Any]] = {}
        for model in grading_models(self):
            if entries.setdefault(model.name, model.entry) != model.entry:
                raise ValueError(f"members ask different models named {model.name!r}; give each its own name")
        return self


class AgreementConfig(Strict):
    """Beside the benchmark's metrics: how far the filters' predictions of a response agree."""

    type: Literal["agreement"] = Field("agreement", description="Its name")
    filters: tuple[str, ...] | None = Field(None, description="Filters to compare; default: all")


class ExecutionConfig(Strict):
    """Answers that are programs are run in a sandbox; their verdicts are the metric ``tests_passed``.

    The template sees what a grading prompt sees. Without ``cases`` the program tests itself and has passed
    when it reached its last line.
    """

    type: Literal["execution"] = Field("execution", description="Answers are programs, to be run")
    program: str = Field("{{ prediction }}", min_length=1, description="Jinja2; the program that is run")
    cases: str | None = Field(
        None,
        description="Field of the item with inputs and expected outputs: one run each, by stdin and stdout",
    )
    compare: Annotated[Compare, BelongsTo("cases")] = Field(
        "lines", description="How the output of a case is compared: lines, tokens, exact"
    )
    language: Literal["python"] = Field("python", description="What the programs are written in")
    python: Annotated[str | None, RunsProgram()] = Field(
        None, description="Path of the interpreter, with its packages; default: the standard library alone"
    )
    limits: ProgramLimits = Field(ProgramLimits(), description="What one run of a program may take")


class ArenaConfig(Strict):
    """The models' answers are compared two at a time by a judge; each model's ``win_rate`` and strength.

    The templates see the item's fields by name, and over them ``answer_a``, ``answer_b``, ``reference`` (the
    first), ``references`` and ``item`` (all fields). A label's grade speaks of answer A.
    """

    type: Literal["arena"] = Field("arena", description="Its name")
    prompt: str | None = Field(None, description="Jinja2: one user message")
    messages: tuple[JudgeMessage, ...] | None = Field(None, description="Chat turns instead of a prompt")
    system_prompt: str | None = Field(None, description="Jinja2: the system message before them")
    judges: Annotated[tuple[JudgeModel, ...], OneOrMany] = Field(
        min_length=1, description="Entries of models:, or entries of their own"
    )
    sample_params: dict[str, Any] = Field(
        default_factory=lambda: {"temperature": 0.0}, description="How verdicts are drawn"
    )
    parse: Reading = Field(
        ChoiceReading(choices={"A": 1.0, "B": 0.0, "TIE": 0.5}),
        description="How a verdict is read off the reply",
    )
    opponents: Literal["baseline", "all"] = Field(
        "all", description="Whom a model plays: one model that is the baseline, or all others"
    )
    baseline: Annotated[str | None, BelongsTo("opponents", ("baseline",))] = Field(
        None, description="With opponents: baseline, its name in models:"
    )
    both_orders: bool = Field(
        True, description="Ask with either answer first; else in one order that chance chooses"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> "ArenaConfig":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError(
                "an arena needs prompt: or messages:, one of the two, with answer_a and answer_b"
            )
        names = [judge.name for judge in self.judges]
        if len(set(names)) < len(names):
            raise ValueError(f"each judge needs a name of its own, not {', '.join(names)}")
        if self.opponents == "baseline" and self.baseline is None:
            raise ValueError("opponents: baseline and baseline: NAME belong together")
        bounds = grade_range(self.parse)
        if bounds is None or not bounds[0] < bounds[1]:
            raise ValueError("an arena needs choices, or min and max, under parse: two answers change places")
        return self


class UserScorerConfig(Gathering):
    """A scorer class in the user's file; all other keys are arguments of its constructor."""

    type: FunctionRef = Field(description="file.py:Class, or the name of an installed plugin")
    depends_on: tuple[str, ...] = Field((), description="Files and folders that the class reads unseen")
    kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Arguments of the class; they may stand beside type as well"
    )

    @field_validator("type")
    @classmethod
    def _names_a_class(cls, value: str) -> str:
        if ":" in value:
            return value
        added = plugins("nightjar.scorers")
        if value in added:
            return added[value].value
        names = [*SCORER_CONFIGS, *added]
        raise ValueError(
            f"scorer type {value!r} is not known{nearest(value, names)} (known: {', '.join(names)}, or "
            "file.py:Class)"
        )

    @model_serializer
    def _flat(self) -> dict[str, Any]:
        named = {"depends_on": list(self.depends_on)} if self.depends_on else {}
        return {"type": self.type, **named, **self.kwargs}


def _tag(value: Any) -> str:
    name = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    config = SCORER_CONFIGS.get(name) if isinstance(name, str) else None
    return "user" if config is None else "default" if config is DefaultScorerConfig else str(name)


def _bare_name(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


ScorerConfig = Annotated[
    Annotated[DefaultScorerConfig, Tag("default")]
    | Annotated[RewardModelConfig, Tag("reward_model")]
    | Annotated[RecordedConfig, Tag("recorded")]
    | Annotated[JudgeConfig, Tag("llm_judge")]
    | Annotated[EnsembleConfig, Tag("ensemble")]
    | Annotated[AgreementConfig, Tag("agreement")]
    | Annotated[ExecutionConfig, Tag("execution")]
    | Annotated[ArenaConfig, Tag("arena")]
    | Annotated[UserScorerConfig, Tag("user")],
    Discriminator(_tag),
]
"""``scorer:`` of a benchmark, distinguished by ``type``; anything with a colon is a user's class."""
SCORER_CONFIGS: Final[Mapping[str, type[Strict]]] = {
    name: config
    for config, _ in map(get_args, get_args(get_args(ScorerConfig)[0]))
    for name in get_args(config.model_fields["type"].annotation)
}
"""The types of scorers, each with what a config says of it."""


NamedScorer = Annotated[ScorerConfig, BeforeValidator(_bare_name)]
"""``scorer:`` of a benchmark, or its type alone."""


ITEM_SECONDS = 5.0
"""What a pattern or a formula may take of CPU time for one item, unless a config says otherwise."""


class ScoringConfig(Strict):
    """All that ``build_scorer`` needs of a benchmark's config.

    ``metric_list`` None means the output type's default metrics, an empty list none at all.
    """

    output_type: OutputType = "generate_until"
    filter_list: tuple[FilterConfig, ...] = ()
    metric_list: tuple[MetricConfig, ...] | None = None
    process_results: str | None = Field(None, description="file.py:fn")
    scorer: NamedScorer | None = None
    letters: Literal["letter", "first_token"] | None = Field(
        None, description="How choices are asked for by their letters; default: not by letters"
    )
    cut_off: CutOff = Field("wrong", description="How an answer that was cut off before it began is scored")
    players: tuple[str, ...] = Field((), description="The models whose answers an arena compares")
    item_timeout: float = ITEM_SECONDS

    @property
    def filters(self) -> tuple[FilterConfig, ...]:
        """The filters; without ``filter_list`` one called ``none`` that leaves responses whole."""
        return self.filter_list or (FilterConfig(name="none"),)


EnsembleMember.model_rebuild()


def split_result_name(name: str, filter_name: str) -> tuple[str, str]:
    """Metric and filter of a result name that may hold both, as ``process_results`` gives them.

    >>> split_result_name("exact_match,strict-match", "none"), split_result_name("bleu", "none")
    (('exact_match', 'strict-match'), ('bleu', 'none'))
    """
    metric, comma, own_filter = name.rpartition(",")
    return (metric.strip(), own_filter.strip()) if comma else (name, filter_name)


@dataclass(frozen=True)
class GradingModel:
    """A judge or a reward model as a scorer's config names it.

    ``entry`` holds the other keys of an entry of its own, and is empty for one of ``models:``; ``sampling``
    are the parameters that the scorer asks with.
    """

    name: str
    entry: Mapping[str, Any]
    sampling: Mapping[str, Any]


def grading_models(config: ScorerConfig | None) -> tuple[GradingModel, ...]:
    """Every model that the scorer asks, wherever in an ensemble it stands, each with each sampling once."""
    models: list[GradingModel] = []
    for *_, model in placed_grading_models(config):
        if model not in models:
            models.append(model)
    return tuple(models)


def placed_grading_models(
    config: ScorerConfig | None, at: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], tuple[str | int, ...], GradingModel]]:
    """As ``grading_models``, each as often as it is named: the place of its scorer, where ``at`` is that of
    ``config``, and its own place below that."""
    if isinstance(config, JudgeConfig | ArenaConfig):
        for index, judge in enumerate(config.judges):
            yield at, ("judges", index), GradingModel(judge.name, judge.entry, config.sample_params)
    elif isinstance(config, RewardModelConfig) and config.model is not None:
        given = {} if isinstance(config.model, str) else config.model
        entry = {key: value for key, value in given.items() if key != "name"}
        yield at, ("model",), GradingModel(config.model_name, entry, config.sample_params)
    elif isinstance(config, EnsembleConfig):
        for index, member in enumerate(config.members):
            yield from placed_grading_models(member.scorer, (*at, "members", index, "scorer"))
