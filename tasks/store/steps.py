"""What a stage's task is given: a step, and the artifacts it works on.

A step keeps apart what decides the answer (its identity, which is in the cache key) and what is needed to
compute it or to name it (which is not): display names, folders, time-outs, limits.
"""

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from tasks.store.storage import ArtifactRef

T = TypeVar("T")


class Unkeyed(BaseModel):
    """Base of everything a task is given that can't change its answer, and so is in no cache key."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class Step(BaseModel, Generic[T]):
    """One task run to be.

    Of a step only ``identity`` enters the cache key: all that can change the rows, beside the artifacts
    they are made from. ``name`` is the run name in the Prefect UI.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: str
    identity: dict[str, Any]
    setup: T
    about: dict[str, str] = {}
    """Whose rows it makes, by names that people know (model_name, prompt_template): for the manifest."""
    whole: tuple[str, ...] = ()
    """Names of the inputs of which the step reads all columns, times and ids too: their bytes are in its
    key."""

    if not TYPE_CHECKING:

        def __class_getitem__(cls, _parameters: Any) -> type:
            """The class itself: the setup's type is for those who read and check the code. Pydantic would
            make a class of its own in the module that asks for it first, which is another one in a process
            that imported stages in another order, and there a step could not be read."""
            return cls

    def at(self, place: str, **about: str) -> "Step[T]":
        """The same step at one place of the grid of models, prompts and partitions, named so."""
        return self.model_copy(update={"name": f"{self.name}{place}", "about": {**self.about, **about}})


class Accounts(Unkeyed):
    """What an inference took when it was computed, the fields of a ``RequestTally``; served from a cache it
    took nothing.

    ``given`` is the digest of which answers it gave, ``night`` the night that it was computed in.
    """

    tally: dict[str, Any]
    given: str = ""
    night: str | None = None


class Answered(BaseModel):
    """The responses of one model to one partition, and what they took."""

    model_config = ConfigDict(frozen=True)

    responses: ArtifactRef
    accounts: Accounts
