"""What the webhook is sent: text, url, verdict and pairs, whatever happened, as Prefect renders it."""

import json
from pathlib import Path
from string import Template
from typing import Any
from uuid import UUID, uuid4

import pytest
import yaml
from prefect.server.events.jinja_filters import all_filters
from prefect.server.events.schemas.automations import Automation
from prefect.server.schemas.core import Deployment, FlowRun, WorkPool
from prefect.server.schemas.states import State, StateType
from prefect.server.utilities.user_templates import register_user_template_filters, render_user_template
from prefect.settings import PREFECT_UI_URL, temporary_settings

FILE = Path(__file__).resolve().parents[3] / "deployments" / "automations.yaml"
TIMES = {"MISSED": "26h", "LATE": "10m", "WORKER": "5m", "PROCESS": "5m"}
UI = "http://nightjar.example:4200"
RUN = UUID("01a2022f-a83f-70e6-ae1e-e78c36160d08")
PAIRS = [
    {"benchmark": "sums", "pair": 'exact_match,"none" (m)', "against": "n1", "verdict": "regression",
     "base": 0.9, "candidate": 0.7, "difference": -0.2, "ci_low": -0.3, "ci_high": -0.1, "reason": None}
]  # fmt: skip
SAID = 'failed: sums × "m" (it\'s <broken>)\nand \\ more {{ flow_run.name }}'


@pytest.fixture(scope="module")
def automations() -> dict[str, dict[str, Any]]:
    seconds = {f"{name}_SECONDS": "60" for name in TIMES}
    text = Template(FILE.read_text()).substitute(WEBHOOK_BLOCK=str(uuid4()), **TIMES, **seconds)
    return {entry["name"]: entry for entry in yaml.safe_load(text)["automations"]}


async def sent(named: dict[str, Any], /, **context: Any) -> dict[str, Any]:
    """The JSON object that the automation's action sends."""
    (action,) = named["actions"]
    register_user_template_filters(all_filters)
    with temporary_settings({PREFECT_UI_URL: UI}):
        document: dict[str, Any] = json.loads(await render_user_template(action["payload"], context))
    assert list(document) == ["text", "url", "verdict", "pairs"]
    return document


def run(state: StateType, name: str, message: str | None, labels: dict[str, str] | None) -> FlowRun:
    ended = State(type=state, name=name, message=message)
    return FlowRun(id=RUN, flow_id=uuid4(), name="nightly 02:30", state=ended, labels=labels)


@pytest.mark.parametrize(
    ("state", "name", "verdict", "pairs"),
    [
        (StateType.FAILED, "Failed", "regression", PAIRS),
        (StateType.FAILED, "Failed", "undecided", PAIRS),
        (StateType.COMPLETED, "Inconclusive", "inconclusive", PAIRS),
        (StateType.COMPLETED, "Worse", "worse", PAIRS * 20),
        (StateType.FAILED, "Failed", "", []),
        (StateType.FAILED, "TimedOut", "", []),
        (StateType.CRASHED, "Crashed", None, None),
    ],
)
async def test_a_night_that_ended_is_told_with_its_verdict_and_its_pairs(
    automations: dict[str, Any], state: StateType, name: str, verdict: str | None, pairs: Any
) -> None:
    labels = None if verdict is None else {"nightjar.verdict": verdict, "nightjar.pairs": json.dumps(pairs)}
    ended = automations["nightjar-night-ended"]
    document = await sent(ended, flow_run=run(state, name, SAID, labels))
    assert document["text"] == f"nightly 02:30 ended {name}: {SAID}"
    assert document["url"] == f"{UI}/runs/flow-run/{RUN}"
    assert (document["verdict"], document["pairs"]) == (verdict or None, pairs or [])
    assert f"prefect.flow-run.{name}" in ended["trigger"]["expect"]


async def test_a_run_without_a_message_is_told_all_the_same(automations: dict[str, Any]) -> None:
    crashed = run(StateType.CRASHED, "Crashed", None, {})
    document = await sent(automations["nightjar-night-ended"], flow_run=crashed)
    assert document["text"] == "nightly 02:30 ended Crashed: "


async def test_what_did_not_happen_is_told_with_the_place_to_look(automations: dict[str, Any]) -> None:
    deployment = Deployment(name="nightly", flow_id=uuid4())
    late = run(StateType.SCHEDULED, "Late", None, None)
    pool = WorkPool(name="local", type="process", default_queue_id=uuid4())
    missed = Automation.model_validate({**automations["nightjar-night-missed"], "actions": []})
    event = {"resource": {"name": "local"}}
    told = {
        "nightjar-night-missed": {"deployment": deployment, "automation": missed},
        "nightjar-run-late": {"flow_run": late},
        "nightjar-worker-gone": {"work_pool": pool, "event": event},
    }
    places = {
        "nightjar-night-missed": f"/deployments/deployment/{deployment.id}",
        "nightjar-run-late": f"/runs/flow-run/{RUN}",
        "nightjar-worker-gone": "/work-pools/work-pool/local",
    }
    words = {
        "nightjar-night-missed": "No night of nightly has completed for 26h",
        "nightjar-run-late": "nightly 02:30 is 10m late",
        "nightjar-worker-gone": "The work pool local has no worker",
    }
    for name, context in told.items():
        document = await sent(automations[name], **context)
        assert document["text"].startswith(words[name])
        assert document["url"] == UI + places[name]
        assert (document["verdict"], document["pairs"]) == (None, [])


def test_every_automation_that_calls_the_webhook_is_one_of_these(automations: dict[str, Any]) -> None:
    calls = {name for name, entry in automations.items() if entry["actions"][0]["type"] == "call-webhook"}
    assert calls == {
        "nightjar-night-ended", "nightjar-night-missed", "nightjar-run-late", "nightjar-worker-gone",
    }  # fmt: skip
