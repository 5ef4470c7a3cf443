"""Secrets that the Prefect server keeps encrypted: keys of models, and where notifications go."""

import os
from typing import Final

from metrics.errors import ConfigError
from tasks.prefect_adapter import secret_block


def secret(name: str) -> str:
    """The value of the Secret block ``name``; raises ConfigError where the server has none."""
    try:
        return secret_block(name)
    except ValueError as error:
        raise ConfigError(
            f"api_key_secret: the Prefect server has no Secret block '{name}'; create it in the UI under "
            "Blocks, or name an environment variable in api_key_env"
        ) from error


WEBHOOK: Final = "NIGHTJAR_WEBHOOK"
WEBHOOK_BLOCK: Final = "nightjar-notifications"
"""Where the address of notifications stands: in the environment, or encrypted on the server."""


def webhook_address() -> str | None:
    """Where notifications go; None where nobody wants any.

    Raises httpx.TransportError while the server, which keeps the address, does not answer.
    """
    from prefect.blocks.webhook import Webhook

    if address := os.environ.get(WEBHOOK):
        return address
    try:
        block = Webhook.load(WEBHOOK_BLOCK, _sync=True)  # type: ignore[call-arg]
    except ValueError:
        return None
    return str(block.url.get_secret_value())  # type: ignore[union-attr]
