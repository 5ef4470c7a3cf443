"""What a config may say under ``evaluation_methods:`` and ``metrics:``.

A method judges one response and gives labels; a metric makes numbers of what the methods said, one number a
label and facet group. Both name a built-in ``type`` or a user's ``function``, never both.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError, model_validator

from metrics.aliases import nearest
from metrics.config import BelongsTo, FunctionRef, Strict

MethodType = Literal["exact_match", "contains", "regex_match", "json_match", "numeric_match", "length_check"]
MetricType = Literal["pass_at_k", "classification", "mean", "median", "percentile", "pass_rate", "count"]


class _Named(Strict):
    """A built-in, or a user's function, under a name of its own."""

    name: str = Field(min_length=1, description="Its name in results")
    function: FunctionRef | None = Field(
        None, description="file.py:fn, a function of your own instead of a type"
    )
    depends_on: Annotated[tuple[str, ...], BelongsTo("function")] = Field(
        (), description="Files and folders that the function reads unseen"
    )
    description: str | None = Field(None, description="A note for readers of the config")
    params: dict[str, Any] = Field(default_factory=dict, description="Arguments of the built-in or function")


class EvaluationMethodConfig(_Named):
    """One entry of ``evaluation_methods``: judges every response and gives it one or several labels.

    A built-in gives the label ``name``; a name of a built-in alone is that built-in.
    """

    type: MethodType | None = Field(None, description="The built-in; default: the one that name names")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return _complete(value, METHOD_PARAMS)

    @model_validator(mode="after")
    def _is_one_thing(self) -> "EvaluationMethodConfig":
        _one_of(self.name, self.type, self.function, "evaluation method", METHOD_PARAMS)
        if self.type is not None:
            check_params(f"evaluation method {self.name!r}", METHOD_PARAMS[self.type], self.params)
        return self


class LabelSelection(Strict):
    """Which labels a metric looks at: only those included, or all but those excluded."""

    include: tuple[str, ...] | None = Field(None, description="Only these labels")
    exclude: tuple[str, ...] | None = Field(None, description="All labels but these")

    @model_validator(mode="after")
    def _is_one_of_them(self) -> "LabelSelection":
        if (self.include is None) == (self.exclude is None):
            raise ValueError("labels takes either include: [...] or exclude: [...]")
        return self

    def keeps(self, label: str | None) -> bool:
        """Whether results under ``label`` belong to the metric."""
        if self.include is not None:
            return label in self.include
        return label not in (self.exclude or ())


class EvaluationMetricConfig(_Named):
    """One entry of ``metrics``: a number for each label and facet group of the evaluation results.

    ``facets`` are dotted paths of a response or an evaluation result; None takes the run's own facets. The
    label is always a facet and need not be named.
    """

    type: MetricType | None = Field(None, description="The built-in; default: the one that name names")
    facets: tuple[str, ...] | None = Field(
        None, description="Dotted fields of response or result; default: the run's own facets"
    )
    labels: LabelSelection | None = Field(None, description="Which labels it looks at; default: all")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return _complete(value, METRIC_PARAMS)

    @model_validator(mode="after")
    def _is_one_thing(self) -> "EvaluationMetricConfig":
        _one_of(self.name, self.type, self.function, "metric over evaluation results", METRIC_PARAMS)
        if self.type is not None:
            check_params(f"metric {self.name!r}", METRIC_PARAMS[self.type], self.params)
        if self.facets is not None and len(set(self.facets)) != len(self.facets):
            raise ValueError(f"metric {self.name!r} names a facet twice: {', '.join(self.facets)}")
        return self

    def required_samples(self) -> int:
        """How many samples of an item the metric needs: k × num_trials for ``pass_at_k``, else 1."""
        if self.type != "pass_at_k":
            return 1
        params = PassAtKParams.model_validate(self.params)
        return params.k * (params.num_trials or 1)


def _complete(value: Any, known: dict[str, Any]) -> Any:
    """A bare name, or an entry that is only a name, means the built-in of that name."""
    entry = {"name": value} if isinstance(value, str) else value
    if not isinstance(entry, dict) or not (entry.get("type") is None is entry.get("function")):
        return entry
    name = entry.get("name")
    return {**entry, "type": name} if isinstance(name, str) and name in known else entry


def _one_of(name: str, kind: str | None, function: str | None, what: str, known: dict[str, Any]) -> None:
    if (kind is None) == (function is None):
        raise ValueError(
            f"{what} {name!r} takes either type: (one of {', '.join(known)}) or function: file.py:name"
        )


def lacking_samples(
    metrics: Sequence[EvaluationMetricConfig], num_samples: int, together: int | None
) -> list[str]:
    """One sentence for each metric that needs more samples of an item than its groups have ``together``: of
    each model and prompt ``num_samples``. None: that is not known before they are there."""
    groups = f" and a group has {together}" if together != num_samples else ""
    return [
        f"metric {metric.name!r} needs {metric.required_samples()} samples of every item (k × num_trials), "
        f"but sample_params.num_samples is {num_samples}{groups}; raise it or lower k or num_trials"
        for metric in metrics
        if together is not None and metric.required_samples() > together
    ]


class Params(Strict):
    """Arguments of one built-in; an argument that it does not have is refused."""


class TruthParams(Params):
    """``ground_truth_field`` names the field to compare of a ground truth that is a mapping, dots inside."""

    ground_truth_field: str | None = Field(None, description="Field of a ground truth that is a mapping")


class ExactMatchParams(TruthParams):
    """Equal texts after the normalisation asked for; white space at the ends counts unless ``strip``."""

    ignore_case: bool = Field(False, description="A equals a")
    ignore_punctuation: bool = Field(False, description="Marks do not count")
    strip: bool = Field(True, description="White space at the ends does not count")


class ContainsParams(TruthParams):
    """The ground truth, or ``values`` instead of it, stands in the response: any of them, or all."""

    values: tuple[str, ...] | None = Field(None, description="Looked for instead of the ground truth")
    mode: Literal["any", "all"] = Field("any", description="How many of them must be there")
    ignore_case: bool = Field(False, description="A equals a")


class RegexMatchParams(TruthParams):
    """``pattern`` (without one the ground truth is the pattern) is found in the response.

    With ``group`` (number or name) the text of that group has to equal the ground truth.
    """

    pattern: str | None = Field(None, description="Regular expression; default: the ground truth is one")
    mode: Literal["search", "match", "fullmatch"] = Field("search", description="As in Python's re")
    group: Annotated[int | str | None, BelongsTo("pattern")] = Field(
        None, description="Group whose text equals the ground truth"
    )
    ignore_case: bool = Field(False, description="re.IGNORECASE")
    multiline: bool = Field(False, description="re.MULTILINE")
    dotall: bool = Field(False, description="re.DOTALL")

    @model_validator(mode="after")
    def _compiles(self) -> "RegexMatchParams":
        if self.pattern is not None:
            try:
                compiled = re.compile(self.pattern, self.flags())
            except re.error as error:
                raise ValueError(f"pattern {self.pattern!r} is no regular expression: {error}") from error
            if self.group is not None and not _has_group(compiled, self.group):
                raise ValueError(f"pattern {self.pattern!r} has no group {self.group!r}")
        return self

    def flags(self) -> int:
        """The flags for ``re.compile``."""
        asked = ((self.ignore_case, re.IGNORECASE), (self.multiline, re.MULTILINE), (self.dotall, re.DOTALL))
        return sum((flag for on, flag in asked if on), start=0)


def _has_group(pattern: "re.Pattern[str]", group: int | str) -> bool:
    return group in pattern.groupindex if isinstance(group, str) else 0 <= group <= pattern.groups


class JsonMatchParams(TruthParams):
    """The response is JSON with the ground truth's structure and, with ``compare: values``, its values."""

    compare: Literal["values", "structure"] = Field("values", description="structure: keys and types only")
    allow_extra_keys: bool = Field(False, description="Keys that the ground truth lacks do no harm")
    ignore_order: bool = Field(False, description="Of lists")
    tolerance: Annotated[float, BelongsTo("compare", ("values",))] = Field(
        default=0.0, ge=0, description="Absolute, for numbers"
    )


class NumericMatchParams(TruthParams):
    """A number of the response is off by ``tolerance + relative_tolerance × |ground truth|`` at most."""

    tolerance: float = Field(default=1e-9, ge=0, description="Absolute")
    relative_tolerance: float = Field(default=0.0, ge=0, description="Share of the ground truth, added to it")
    take: Literal["last", "first", "whole"] = Field(
        "last", description="Which number; whole: the response is nothing else"
    )


class LengthCheckParams(Params):
    """The response's length lies between ``min_length`` and ``max_length``, both included."""

    min_length: int | None = Field(default=None, ge=0, description="The shortest that passes")
    max_length: int | None = Field(default=None, ge=0, description="The longest that passes")
    unit: Literal["characters", "words", "lines"] = Field("characters", description="What is counted")

    @model_validator(mode="after")
    def _is_a_range(self) -> "LengthCheckParams":
        if self.min_length is None and self.max_length is None:
            raise ValueError("length_check needs min_length, max_length or both")
        if self.min_length is not None and self.max_length is not None and self.min_length > self.max_length:
            raise ValueError(f"min_length {self.min_length} is above max_length {self.max_length}")
        return self


class PassAtKParams(Params):
    """Does one of k samples pass?

    ``estimator: trials`` cuts the first k × num_trials samples of every item, in the order of the file, into
    trials of k consecutive ones; each gives one rate over all items, and ``aggregation`` makes the number of
    those. ``unbiased`` is the mean over items of 1 − C(n−c, k) / C(n, k) over all n samples, c of which pass.
    """

    k: int = Field(default=1, ge=1, description="Samples of a trial, one of which has to pass")
    num_trials: Annotated[int | None, BelongsTo("estimator", ("trials",))] = Field(
        default=None, ge=1, description="Trials of an item; default: 1"
    )
    aggregation: Annotated[Literal["mean", "median", "min", "max"], BelongsTo("estimator", ("trials",))] = (
        Field("mean", description="How the trials' rates become one number")
    )
    estimator: Literal["trials", "unbiased"] = Field("trials", description="See above")


class ClassificationParams(Params):
    """Which of the measures is the row's ``value``, and which samples count.

    ``estimator: trials`` adds up the cells of the first ``num_trials`` samples of every item; a measure
    without cases is 0. ``items`` takes all samples and gives every item the same weight, so that counts are
    fractions; a measure without cases is null.
    """

    value: Literal["f1", "precision", "recall", "balanced_accuracy", "accuracy", "specificity"] = Field(
        "f1", description="The measure that is the row's value"
    )
    num_trials: Annotated[int, BelongsTo("estimator", ("trials",))] = Field(
        default=1, ge=1, description="Samples of an item that count"
    )
    estimator: Literal["trials", "items"] = Field("trials", description="See above")


class SamplesParams(Params):
    """``estimator: samples`` is over all samples; ``items`` over the items' means, which weigh the same."""

    estimator: Literal["samples", "items"] = Field("samples", description="What the number is over")


class PercentileParams(SamplesParams):
    """``percentile``: which one, in percent."""

    percentile: float = Field(default=95.0, ge=0, le=100, description="Which one, in percent")


class NoParams(Params):
    """Takes no arguments."""


METHOD_PARAMS: Final[dict[str, type[Params]]] = {
    "exact_match": ExactMatchParams,
    "contains": ContainsParams,
    "regex_match": RegexMatchParams,
    "json_match": JsonMatchParams,
    "numeric_match": NumericMatchParams,
    "length_check": LengthCheckParams,
}

METRIC_PARAMS: Final[dict[str, type[Params]]] = {
    "pass_at_k": PassAtKParams,
    "classification": ClassificationParams,
    "mean": SamplesParams,
    "median": SamplesParams,
    "percentile": PercentileParams,
    "pass_rate": SamplesParams,
    "count": NoParams,
}


def check_params(owner: str, model: type[Params], params: Mapping[str, Any]) -> None:
    """Raises ValueError naming ``owner``, the argument, what was expected and the nearest known argument."""
    unknown = [name for name in params if name not in model.model_fields]
    if unknown:
        hint = nearest(unknown[0], model.model_fields)
        known = ", ".join(model.model_fields) or "no arguments"
        raise ValueError(f"{owner} does not take the argument {unknown[0]!r}{hint} (it takes {known})")
    try:
        checked = model.model_validate(dict(params))
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{part}: " for part in first["loc"])
        raise ValueError(f"{owner}: {where}{first['msg'].removeprefix('Value error, ')}") from error
    for name, value in params.items():
        # pydantic takes a boolean for 0 or 1
        if isinstance(value, bool) and not isinstance(getattr(checked, name), bool):
            raise ValueError(f"{owner}: {name}: expected no boolean, got {str(value).lower()}")
