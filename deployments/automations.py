"""Creates the automations of automations.yaml on the Prefect server that PREFECT_API_URL names.

``NIGHTJAR_WEBHOOK=https://… python deployments/automations.py``; run again, it replaces them, and starts the
clocks of nights anew. The webhook gets a POST with a JSON object: ``text``, ``url``, ``verdict``, ``pairs``.
"""

import asyncio
import os
import re
import sys
from pathlib import Path
from string import Template
from typing import Any

import yaml
from prefect import get_client
from prefect.automations import AutomationCore
from prefect.blocks.webhook import Webhook
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.client.schemas.responses import DeploymentResponse
from prefect.events import emit_event
from prefect.events.worker import EventsWorker
from pydantic import SecretStr

FILE = Path(__file__).with_name("automations.yaml")
BLOCK = "nightjar-notifications"
PREFIX = "nightjar-"
NIGHTLY = "nightly"
"""Tag of the deployments whose nights are waited for."""
TIMES = {"MISSED": "26h", "LATE": "10m", "WORKER": "5m", "PROCESS": "5m"}
"""How long is waited before somebody is told; NIGHTJAR_MISSED_AFTER and so on say otherwise."""
UNITS = {"s": 1, "m": 60, "h": 3600}
SHORTEST = 10
"""Seconds that Prefect waits for an event at least."""


def times() -> dict[str, str]:
    """The times as the YAML file names them: in words (LATE) and in seconds (LATE_SECONDS)."""
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


async def create(address: str) -> list[str]:
    """Saves the webhook and creates the automations anew; their names."""
    block = await Webhook(method="POST", url=SecretStr(address)).save(BLOCK, overwrite=True)
    text = Template(FILE.read_text(encoding="utf-8")).substitute(WEBHOOK_BLOCK=str(block), **times())
    wanted: list[dict[str, Any]] = yaml.safe_load(text)["automations"]
    async with get_client() as client:
        for old in await client.read_automations():
            if old.name.startswith(PREFIX):  # those of an earlier version that are no more, too
                await client.delete_automation(old.id)
        for automation in wanted:
            await client.create_automation(AutomationCore.model_validate(automation))
        nightly = DeploymentFilter(tags=DeploymentFilterTags(all_=[NIGHTLY]))
        for deployment in await client.read_deployments(deployment_filter=nightly):
            watch(deployment)
    return [automation["name"] for automation in wanted]


def watch(deployment: DeploymentResponse) -> None:
    """Starts the clock of a deployment's nights: a first night that never comes is missed as well."""
    role = "prefect.resource.role"
    emit_event(
        "nightjar.suite.watched",
        resource={"prefect.resource.id": f"nightjar.suite.{deployment.name}"},
        related=[
            {"prefect.resource.id": f"prefect.deployment.{deployment.id}", role: "deployment"},
            {"prefect.resource.id": f"prefect.tag.{NIGHTLY}", role: "tag"},
        ],
    )


def refuse(reason: str) -> None:
    print(reason, file=sys.stderr)
    raise SystemExit(2)


def main() -> None:
    """Says what is missing, or what was created."""
    address = os.environ.get("NIGHTJAR_WEBHOOK")
    if not address:
        refuse("NIGHTJAR_WEBHOOK is not set: expected the address that notifications are sent to")
    for name in asyncio.run(create(str(address))):
        print(f"automation {name}")
    EventsWorker.drain_all(timeout=30)


if __name__ == "__main__":
    main()
