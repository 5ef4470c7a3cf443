"""What a flow run's page shows of its parameters: as Prefect itself would write them."""

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect import Flow

from flows.config.load import load_config
from flows.config.schema import RunOptions
from tasks.prefect_adapter import LocalFuture, served_flow


def take(value: Any) -> None:
    """A flow's function."""


class Odd:
    """Nothing that has a form in JSON."""

    __slots__ = ()


@pytest.mark.parametrize(
    "value",
    [
        lambda: load_config(None),
        lambda: RunOptions(limit=3, output="out"),
        lambda: {"path": Path("a b"), "numbers": (1, 2.5, None), "names": {"one"}},
        lambda: LocalFuture(uuid4(), Future()),
        Odd,
        lambda: [Odd()],
    ],
)
def test_parameters_are_written_as_prefect_writes_them(value: Callable[[], Any]) -> None:
    flow: Any = served_flow(nullcontext, lambda: None, name="take")(take)
    parameters = {"value": value()}
    sent = flow.serialize_parameters(parameters)
    assert sent == Flow.serialize_parameters(flow, parameters)
    assert json.loads(json.dumps(sent)) == sent


def test_they_are_written_without_importing_a_web_framework() -> None:
    script = (
        "import sys; from flows.eval.session import evaluate; evaluate.serialize_parameters({'limit': 1}); "
        "print('fastapi' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
