"""What a config says of a task of Inspect, and what was found of it where the config was read."""

from typing import Any, Final

from pydantic import Field, JsonValue

from metrics.config import Strict

BLOCK: Final = 50


class InspectLimits(Strict):
    """Where a sample ends, by Inspect's own names."""

    message_limit: int | None = Field(default=None, ge=1, description="Messages of a sample, at most")
    token_limit: int | None = Field(default=None, ge=1, description="Tokens of a sample, at most")
    time_limit: int | None = Field(default=None, ge=1, description="Seconds of a sample, at most")
    working_limit: int | None = Field(
        default=None, ge=1, description="Seconds of a sample without the waiting for others, at most"
    )


class InspectTask(Strict):
    """A task of Inspect, which inspect_ai runs: its samples are the items, its scorers the metrics."""

    task: str = Field(
        min_length=1,
        description="file.py@name, relative to the config, or package/task of an installed package",
    )
    args: dict[str, JsonValue] = Field(default_factory=dict, description="Arguments of the task")
    limits: InspectLimits = Field(default_factory=InspectLimits, description="Where a sample ends")
    values: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="Scorer → the keys of the dictionaries that it gives, where its metrics don't name them",
    )
    block: int = Field(
        default=BLOCK, ge=1, description="Samples that one process evaluates; a killed one goes on in its log"
    )
    depends_on: tuple[str, ...] = Field(
        default=(), description="Files and folders that the task reads only while it runs"
    )


class InspectFound(Strict):
    """What inspect_ai said of the task when the config was read: all of it is in the keys of its answers."""

    files: dict[str, str] = Field(description="Files that the task is made of, each with its digest")
    packages: dict[str, str] = Field(description="Versions of inspect_ai and of the task's own distribution")
    absent: tuple[str, ...] = Field(default=(), description="Clients of models that are not installed there")
    pairs: tuple[str, ...] = Field(description="Names of the metrics that are made of its scores")
    notes: tuple[str, ...] = Field(default=(), description="What the run's reader has to know")

    def identity(self, task: InspectTask) -> dict[str, Any]:
        """What decides answers besides the model and the samples."""
        about = task.model_dump(mode="json", include={"task", "args", "limits"}, exclude_none=True)
        return {**about, "files": sorted(self.files.values()), "packages": self.packages}


class InspectRun(Strict):
    """The task that a model is evaluated on."""

    task: InspectTask
    found: InspectFound
