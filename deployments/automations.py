"""Creates the automations of automations.yaml on the Prefect server that PREFECT_API_URL names.

``NIGHTJAR_WEBHOOK=https://… python deployments/automations.py``; run again, it replaces them. The webhook
gets a POST with a JSON object: ``text``, and ``url`` of the run where there is one.
"""

import asyncio
import os
import sys
from pathlib import Path
from string import Template
from typing import Any

import yaml
from prefect import get_client
from prefect.automations import AutomationCore
from prefect.blocks.webhook import Webhook
from pydantic import SecretStr

FILE = Path(__file__).with_name("automations.yaml")
BLOCK = "nightjar-notifications"


async def create(address: str) -> list[str]:
    """Saves the webhook and creates the automations anew; their names."""
    block = await Webhook(method="POST", url=SecretStr(address)).save(BLOCK, overwrite=True)
    text = Template(FILE.read_text(encoding="utf-8")).substitute(WEBHOOK_BLOCK=str(block))
    wanted: list[dict[str, Any]] = yaml.safe_load(text)["automations"]
    async with get_client() as client:
        for automation in wanted:
            for old in await client.read_automations_by_name(automation["name"]):
                await client.delete_automation(old.id)
            await client.create_automation(AutomationCore.model_validate(automation))
    return [automation["name"] for automation in wanted]


def main() -> None:
    """Says what is missing, or what was created."""
    address = os.environ.get("NIGHTJAR_WEBHOOK")
    if not address:
        print(
            "NIGHTJAR_WEBHOOK is not set: expected the address that notifications are sent to",
            file=sys.stderr,
        )
        raise SystemExit(2)
    for name in asyncio.run(create(address)):
        print(f"automation {name}")


if __name__ == "__main__":
    main()
