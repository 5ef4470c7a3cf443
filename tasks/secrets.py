"""Secrets that the Prefect server keeps encrypted: keys of models, and where notifications go."""

import re
from typing import Final

from metrics.config import WEB
from metrics.errors import ConfigError
from tasks.prefect_adapter import secret_block
from tasks.store.home import variable


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


def webhook_set() -> str | None:
    """The address of notifications in the environment, None for none. Raises ConfigError for what is no
    address, and does not repeat it: who knows a webhook's may post."""
    address = variable(WEBHOOK)
    if address and not re.match(WEB, address):
        raise ConfigError(
            f"{WEBHOOK}: expected an address that begins with https://; correct it, or unset it"
        )
    return address or None


def webhook_address() -> str | None:
    """Where notifications go; None where nobody wants any.

    Raises ConfigError as ``webhook_set``, and httpx.TransportError while the server, which keeps the address,
    does not answer.
    """
    from prefect.blocks.webhook import Webhook

    if address := webhook_set():
        return address
    try:
        block = Webhook.load(WEBHOOK_BLOCK, _sync=True)  # type: ignore[call-arg]
    except ValueError:
        return None
    return str(block.url.get_secret_value())  # type: ignore[union-attr]
