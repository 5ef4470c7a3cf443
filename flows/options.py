"""How one run of an evaluation goes about it: nothing here is part of what is evaluated."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class Phase(StrEnum):
    """Which part of an evaluation a run does."""

    ALL = "all"
    INFER = "infer"
    SCORE = "score"


CACHED_STAGES = ("load", "render", "infer", "filter", "process", "ask", "score", "reduce", "aggregate")


class RunOptions(BaseModel):
    """Options of a run, as on the command line."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    limit: int | None = Field(default=None, ge=1, description="Only the first items")
    output: str | None = Field(
        default=None, description="Folder of the run's files; default: results/<run id>"
    )
    store: str | None = Field(default=None, description="URI of the artifact store; default: a local folder")
    run_name: str | None = Field(default=None, description="Name of the run; default: benchmark and time")
    run_id: str | None = Field(
        default=None, description="Id of the run in the history; default: from name and time"
    )
    phase: Phase = Field(
        default=Phase.ALL, description="infer: responses only; score: responses are there already"
    )
    command: str | None = Field(default=None, description="How it was started, for who wants to run it again")
    refresh: tuple[str, ...] = Field(
        default=(), description="Stages, or pairs as 'filter:metric', to compute whatever the store holds"
    )


DEFAULT_OPTIONS = RunOptions()
