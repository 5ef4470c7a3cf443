"""What an inference hands on: the responses, and what they took."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from tasks.steps import Unkeyed
from tasks.store.refs import ArtifactRef


class Accounts(Unkeyed):
    """What an inference took when it was computed, the fields of a ``Tally``; served from a cache it took
    nothing."""

    tally: dict[str, Any]


class Answered(BaseModel):
    """The responses of one model to one partition, and what they took."""

    model_config = ConfigDict(frozen=True)

    responses: ArtifactRef
    accounts: Accounts
