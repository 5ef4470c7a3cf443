"""What a config may say under ``evaluation_methods:`` and ``metrics:``.

A method judges one response and gives labels; a metric makes numbers of what the methods said, one number a
label and facet group. Both name a built-in ``type`` or a user's ``function``, never both.
"""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tasks.evaluation.params import METHOD_PARAMS, METRIC_PARAMS, PassAtKParams, check_params

MethodType = Literal["exact_match", "contains", "regex_match", "json_match", "numeric_match", "length_check"]
MetricType = Literal["pass_at_k", "classification", "mean", "median", "percentile", "pass_rate", "count"]


class _Named(BaseModel):
    """A built-in, or a user's function, under a name of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    function: str | None = None  # "file.py:fn"
    description: str | None = None
    params: dict[str, Any] = Field(default_factory=dict)


class EvaluationMethodConfig(_Named):
    """One entry of ``evaluation_methods``: judges every response and gives it one or several labels.

    A built-in gives the label ``name``; a name of a built-in alone is that built-in.
    """

    type: MethodType | None = None

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


class LabelSelection(BaseModel):
    """Which labels a metric looks at: only those included, or all but those excluded."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] | None = None

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

    type: MetricType | None = None
    facets: tuple[str, ...] | None = None
    labels: LabelSelection | None = None

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
    if not isinstance(entry, dict) or entry.get("type") or entry.get("function"):
        return entry
    name = entry.get("name")
    return {**entry, "type": name} if isinstance(name, str) and name in known else entry


def _one_of(name: str, kind: str | None, function: str | None, what: str, known: dict[str, Any]) -> None:
    if (kind is None) == (function is None):
        raise ValueError(
            f"{what} {name!r} takes either type: (one of {', '.join(known)}) or function: file.py:name"
        )


def duplicate_names(configs: Sequence[_Named]) -> list[str]:
    """Names that more than one entry claims, in order of appearance."""
    names = [config.name for config in configs]
    return sorted({name for name in names if names.count(name) > 1}, key=names.index)


def lacking_samples(metrics: Sequence[EvaluationMetricConfig], num_samples: int) -> list[str]:
    """One sentence for each metric that needs more samples of an item than the config asks for."""
    return [
        f"metric {metric.name!r} needs {metric.required_samples()} samples of every item (k × num_trials), "
        f"but sample_params.num_samples is {num_samples}; raise it or lower k or num_trials"
        for metric in metrics
        if metric.required_samples() > num_samples
    ]
