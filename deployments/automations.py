"""Keeps the webhook on the Prefect server that PREFECT_API_URL names, and creates the automations of
automations.yaml there; those of earlier versions are removed.

``NIGHTJAR_WEBHOOK=https://… python deployments/automations.py``; ``make deploy`` calls it too. Without the
variable, a webhook that the server keeps already stays. The webhook gets a POST with a JSON object: ``key``,
``text``, ``url``, ``verdict``, ``pairs``, ``cost``.
"""

import asyncio
import os
import re
import sys
from pathlib import Path
from string import Template
from typing import Any, NoReturn

import yaml
from prefect import get_client
from prefect.automations import AutomationCore
from prefect.blocks.webhook import Webhook
from prefect.exceptions import ObjectNotFound
from pydantic import SecretStr

from metrics.errors import ConfigError
from tasks.secrets import WEBHOOK, WEBHOOK_BLOCK, webhook_set

FILE = Path(__file__).with_name("automations.yaml")
PREFIX = "nightjar-"
TIMES = {"WATCH": "10m"}
"""How long is waited before somebody is told; NIGHTJAR_WATCH_AFTER and so on say otherwise."""
UNITS = {"s": 1, "m": 60, "h": 3600}
SHORTEST = 10
"""Seconds that Prefect waits for an event at least."""


def times() -> dict[str, str]:
    """The times as the YAML file names them: in words (WATCH) and in seconds (WATCH_SECONDS)."""
    found = {}
    for name, usual in TIMES.items():
        variable = f"NIGHTJAR_{name}_AFTER"
        text = os.environ.get(variable) or usual
        match = re.fullmatch(r"(\d+)\s*([smh])", text)
        seconds = int(match[1]) * UNITS[match[2]] if match else 0
        if seconds < SHORTEST:
            refuse(
                f"{variable}: expected a time of {SHORTEST}s or more such as 90s, 10m or 26h, got '{text}'"
            )
        found |= {name: text, f"{name}_SECONDS": str(seconds)}
    return found


async def webhook_block(address: str | None) -> str | None:
    """The id of the block with the webhook's address, which ``address`` becomes if it is given."""
    if address:
        saved = Webhook(method="POST", url=SecretStr(address)).save(WEBHOOK_BLOCK, overwrite=True)
        return str(await saved)
    async with get_client() as client:
        try:
            kept = await client.read_block_document_by_name(WEBHOOK_BLOCK, block_type_slug="webhook")
        except ObjectNotFound:
            return None
    return str(kept.id)


async def create(address: str | None) -> list[str]:
    """Creates the automations anew, as far as there is a webhook; their names."""
    block = await webhook_block(address)
    wanted: list[dict[str, Any]] = []
    if block is not None:
        text = Template(FILE.read_text(encoding="utf-8")).substitute(WEBHOOK_BLOCK=block, **times())
        wanted = yaml.safe_load(text)["automations"]
    async with get_client() as client:
        for old in await client.read_automations():
            if old.name.startswith(PREFIX):  # those of an earlier version would tell nights twice
                await client.delete_automation(old.id)
        for automation in wanted:
            await client.create_automation(AutomationCore.model_validate(automation))
    return [automation["name"] for automation in wanted]


def refuse(reason: str) -> NoReturn:
    print(reason, file=sys.stderr)
    raise SystemExit(2)


def main() -> None:
    """Says what was created, or that nobody is told."""
    try:
        address = webhook_set()
    except ConfigError as error:
        refuse(str(error))
    created = asyncio.run(create(address))
    for name in created:
        print(f"automation {name}")
    if not created:
        print(f"nobody is told of nights: set {WEBHOOK} to the address that notifications are sent to")


if __name__ == "__main__":
    main()
