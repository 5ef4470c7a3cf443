"""The one seam between the engine and whatever answers: a provider sends a call and gives back a parsed
body.
"""

from typing import Protocol

from tasks.models.records import Call, Reply


class Provider(Protocol):
    """Sends calls to a model. Made and closed on the loop that uses it."""

    async def send(self, call: Call, timeout: float) -> Reply:
        """The reply to a call within ``timeout`` seconds; raises an error of ``tasks.models.errors``."""
        ...

    async def close(self) -> None:
        """Frees the connections."""
        ...
