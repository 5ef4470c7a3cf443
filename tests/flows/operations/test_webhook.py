"""The one automation that is left: it tells that the watch is gone, as Prefect renders it."""

import json
from pathlib import Path
from string import Template
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import yaml
from prefect.server.events.jinja_filters import all_filters
from prefect.server.events.schemas.automations import Automation
from prefect.server.utilities.user_templates import register_user_template_filters, render_user_template
from prefect.settings import PREFECT_UI_URL, temporary_settings

from flows.watch.watch import LOOKED
from tasks.history.nights import Notice
from tasks.history.notices import message_of

FILE = Path(__file__).resolve().parents[3] / "deployments" / "automations.yaml"
UI = "http://nightjar.example:4200"


@pytest.fixture(scope="module")
def automations() -> dict[str, dict[str, Any]]:
    values = {"WEBHOOK_BLOCK": str(uuid4()), "WATCH": "10m", "WATCH_SECONDS": "600"}
    text = Template(FILE.read_text()).substitute(values)
    return {entry["name"]: entry for entry in yaml.safe_load(text)["automations"]}


async def test_a_watch_that_is_gone_is_told_with_the_keys_of_every_message(automations: Any) -> None:
    gone = automations["nightjar-watch-gone"]
    (action,) = gone["actions"]
    register_user_template_filters(all_filters)
    context = {
        "automation": Automation.model_validate({**gone, "actions": []}),
        "event": SimpleNamespace(id=uuid4()),
    }
    with temporary_settings({PREFECT_UI_URL: UI}):
        document = json.loads(await render_user_template(action["payload"], context))
    assert "has not looked for 10m" in document["text"]
    assert document["url"].startswith(f"{UI}/automations/automation/")
    assert set(document) == set(message_of(Notice(key="k", text="t", written="")))
    assert (document["verdict"], document["pairs"], document["cost"]) == (None, [], {})


def test_no_automation_listens_to_how_runs_end_or_changes_their_state(automations: Any) -> None:
    assert list(automations) == ["nightjar-watch-gone"]
    (gone,) = automations.values()
    assert gone["trigger"]["expect"] == gone["trigger"]["after"] == [LOOKED]
    assert [action["type"] for action in gone["actions"]] == ["call-webhook"]
