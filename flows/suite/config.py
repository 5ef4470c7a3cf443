"""A suite: which benchmarks on which models every night, and against what the outcome is held.

.. code-block:: yaml

    name: nightly
    benchmarks:
      - ../benchmarks/demo/gsm8k.yaml
      - {config: ../benchmarks/gsm8k/gsm8k.yaml, limit: 200, set: {statistics.seed: 1}}
    models: [{name: qwen, config: {base_url: "http://localhost:8000/v1"}}]   # without: each benchmark's own
    baseline: last-passed        # last-passed | last | rolling | a suite's or an evaluation's run
    gate: gate.yaml              # or the gate itself
    answers: fresh               # fresh | reuse | {max_age: 20h}; without: what each benchmark says
"""

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from flows.compare.runs import load_gate
from flows.config.errors import validated
from flows.config.yaml import read_yaml
from metrics.errors import ConfigError
from metrics.printable import check_name
from tasks.comparison.compare import Gate
from tasks.history.record import LAST_PASSED
from tasks.models.config import Answers, ModelConfig
from tasks.store.durations import Seconds


def _path_alone(value: Any) -> Any:
    return {"config": value} if isinstance(value, str) else value


class SuiteBenchmark(BaseModel):
    """One benchmark of a suite; a path alone is enough."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: str = Field(min_length=1, description="Its YAML file, relative to the suite's")
    limit: int | None = Field(None, ge=1, description="Only the first items")
    set: dict[str, Any] = Field(default_factory=dict, description="Overrides, as --set on the command line")


class SuiteConfig(BaseModel):
    """A suite file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, description="The suite's history goes by it")
    benchmarks: tuple[Annotated[SuiteBenchmark, BeforeValidator(_path_alone)], ...] = Field(min_length=1)
    models: tuple[ModelConfig, ...] = Field(
        (), description="Models for all benchmarks; without: each one's own"
    )
    baseline: str = Field(LAST_PASSED, min_length=1, description="last-passed | last | rolling | a run's id")
    gate: Gate | None = Field(None, description="The gate, or the name of its file")
    answers: Answers | None = Field(
        None, description="Which kept answers serve, for all benchmarks; without: what each one says"
    )
    canaries: int = Field(
        5, ge=0, description="Kept requests asked again before answers are reused: has the model changed?"
    )
    nights: int = Field(
        7, ge=2, description="Nights that the rolling baseline, trends and flapping items look back on"
    )
    parallel: int = Field(2, ge=1, description="Evaluations at once")
    retries: int = Field(0, ge=0, description="How often an evaluation that failed is tried again")
    retry_delay: float = Field(60.0, ge=0, description="Seconds before it is")
    timeout: Seconds | None = Field(
        None, description="How long a night may take, such as 6h; then it ends under the name TimedOut"
    )
    base_dir: str = Field(".", description="Folder that paths are relative to: the suite file's")

    @field_validator("name", mode="after")
    @classmethod
    def _can_be_shown(cls, name: str) -> str:
        return check_name(name)

    @field_validator("models", mode="after")
    @classmethod
    def _apart(cls, models: tuple[ModelConfig, ...]) -> tuple[ModelConfig, ...]:
        names = [model.name for model in models]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"model '{min(twice)}' is there twice; give each a name of its own")
        return models

    def files(self) -> tuple[Path, ...]:
        """The benchmarks' files."""
        return tuple(Path(self.base_dir) / benchmark.config for benchmark in self.benchmarks)


def load_suite(path: str | Path) -> SuiteConfig:
    """Reads a suite file; raises ConfigError, one line for each thing that is wrong, with file and line."""
    file = Path(path)
    source = read_yaml(file)
    data = {"base_dir": str(file.resolve().parent)} | source.data
    if isinstance(data.get("gate"), str):
        data["gate"] = load_gate(Path(data["base_dir"]) / data["gate"])
    suite = validated(SuiteConfig, source, data)
    for benchmark, there in zip(suite.benchmarks, suite.files(), strict=True):
        if not os.path.isfile(there):
            raise ConfigError(
                f"{source.where(('benchmarks',))}: benchmark '{benchmark.config}' is not there: {there}"
            )
    return suite
