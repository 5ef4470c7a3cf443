"""What is kept and for how long: the config of ``prune``.

.. code-block:: yaml

    keep: 30                              # newest runs of each benchmark × model whose artifacts stay
    results: 90d                          # output folders, below the folder of results
    answers: {unused: 90d, age: 365d}     # or one length of time: unused for so long
    logs: 30d                             # log files of the project's own server, worker and models
"""

from datetime import timedelta
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from tasks.store.durations import Duration


def _unused_alone(value: Any) -> Any:
    return {"unused": value} if isinstance(value, str | timedelta) else value


class AnswerRetention(BaseModel):
    """When a kept answer is removed: the next run that wants it asks the model again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    unused: Duration | None = Field(timedelta(days=90), description="No run has used it for so long")
    age: Duration | None = Field(None, description="It was asked for so long ago, used or not")


class Retention(BaseModel):
    """What ``prune`` leaves. A key that is null keeps everything of its kind.

    Rows of results and items are never removed: the history stays whole.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    keep: int | None = Field(
        30, ge=1, description="Newest runs of each benchmark × model whose artifacts are kept"
    )
    results: Duration | None = Field(
        timedelta(days=90), description="Output folders that nothing was written to for so long are removed"
    )
    answers: Annotated[AnswerRetention, BeforeValidator(_unused_alone)] | None = Field(
        default_factory=AnswerRetention, description="When answers of models are removed"
    )
    logs: Duration | None = Field(
        timedelta(days=30), description="Log files that nothing was written to for so long are removed"
    )


EVERYTHING: Final = Retention(keep=None, results=None, answers=None, logs=None)
"""Forgets nothing: only artifacts that no run refers to are removed."""
