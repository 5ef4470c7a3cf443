"""``publish:`` of a config: each entry names one destination, alone or with its keys."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_serializer, model_validator

from metrics.aliases import nearest
from metrics.config import Strict
from tasks.publishers.every_eval_ever import EveryEvalEver
from tasks.publishers.hub import Hub
from tasks.publishers.mlflow import MLflow
from tasks.publishers.otel import OTel
from tasks.publishers.publisher import Publisher
from tasks.publishers.wandb import WandB

ExportForm = Literal["inspect"]
"""Programs in whose form the samples may be written, too."""


class PublishConfig(Strict):
    """One destination: its name, or its name with its keys. Its fields are all there are."""

    every_eval_ever: EveryEvalEver | None = Field(
        default=None, description="The field's common record: one JSON document for each model"
    )
    mlflow: MLflow | None = Field(
        default=None, description="MLflow: one of its runs for each model (extra mlflow)"
    )
    wandb: WandB | None = Field(
        default=None, description="Weights & Biases: one of its runs for each model (extra wandb)"
    )
    hub: Hub | None = Field(
        default=None, description="The hub's evaluation results, in a model's repository (extra hub)"
    )
    otel: OTel | None = Field(
        default=None, description="OpenTelemetry: requests and programs as spans of a trace (extra otel)"
    )

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        named = {value: {}} if isinstance(value, str) else value
        if not isinstance(named, Mapping):
            return value
        names = ", ".join(cls.model_fields)
        for name in named:
            if name not in cls.model_fields:
                raise ValueError(
                    f"expected one of {names}, got {name!r}{nearest(str(name), cls.model_fields)}"
                )
        chosen = {name: keys if keys is not None else {} for name, keys in named.items()}
        if len(chosen) != 1:
            raise ValueError(f"expected one destination an entry, of {names}; got {len(chosen)}")
        return chosen

    @model_serializer
    def _chosen(self) -> dict[str, Any]:
        return {self.name: self.publisher.model_dump(mode="json")}

    @property
    def name(self) -> str:
        """The destination's name."""
        (name,) = self.model_fields_set
        return name

    @property
    def publisher(self) -> Publisher:
        """The destination."""
        found: Publisher = getattr(self, self.name)
        return found
