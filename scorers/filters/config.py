"""What a config says about filters."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_serializer, model_validator

from metrics.config import MetricConfig
from metrics.printable import check_name


class FilterStepConfig(BaseModel):
    """One step: a registered name or ``file.py:fn``, and its arguments, which are all the other keys.

    >>> FilterStepConfig.model_validate({"function": "take_first_k", "k": 4}).kwargs
    {'k': 4}
    """

    # Written flat, so the form that a config is sent by must let the arguments pass, too.
    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra={"additionalProperties": True})

    function: str = Field(description="Registered name, or file.py:fn")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Arguments of the step")

    @model_validator(mode="before")
    @classmethod
    def _gather_arguments(cls, data: Any) -> Any:
        if isinstance(data, str):
            return {"function": data}
        if not isinstance(data, Mapping) or "function" not in data:
            return data
        arguments = {key: value for key, value in data.items() if key not in ("function", "kwargs")}
        return {"function": data["function"], "kwargs": {**(data.get("kwargs") or {}), **arguments}}

    @model_serializer
    def _flat(self) -> dict[str, Any]:
        return {"function": self.function, **self.kwargs}


class FilterConfig(BaseModel):
    """One entry of ``filter_list``: a named chain of steps, and the metrics of its predictions.

    Without ``metric_list`` the benchmark's own list counts; without steps the whole response is the
    prediction.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, description="Shown beside the metric: metric,name")
    filter: tuple[FilterStepConfig, ...] = Field((), description="Steps, first to last")
    metric_list: tuple[MetricConfig, ...] | None = Field(None, description="Metrics of this filter")

    @model_validator(mode="before")
    @classmethod
    def _one_step_or_many(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        alone = {
            key: [data[key]] for key in ("filter", "metric_list") if isinstance(data.get(key), str | Mapping)
        }
        return {**data, **alone}

    @model_validator(mode="after")
    def _name_can_be_shown(self) -> "FilterConfig":
        if "," in self.name:
            raise ValueError(f"filter name {self.name!r} can't hold a comma: results are keyed metric,filter")
        return self

    @field_validator("name")
    @classmethod
    def _name_is_a_name(cls, value: str) -> str:
        return check_name(value)
