"""What a task takes along to another process or machine: its code, and nothing of this process's state.

Prefect and Dask send a task's function by value, and with it every global that it names.
"""

import inspect
import pkgutil
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from prefect import Flow, Task

import flows
import tasks
from tasks.load import keep_ahead, load
from tests.tasks.test_load import rows_of, step

PROJECT = Path(__file__).resolve().parents[2]
MUTABLE = (dict, list, set, bytearray)

__all__ = ["step"]


def sent() -> dict[str, Task[..., Any] | Flow[..., Any]]:
    """Every task and flow of the project."""
    folders = [(tasks, "tasks."), (flows, "flows."), (import_module("flows.eval"), "flows.eval.")]
    names = [name for package, at in folders for _, name, _ in pkgutil.iter_modules(package.__path__, at)]
    modules = [import_module(name) for name in names if not name.endswith("__main__")]
    return {
        f"{module.__name__}.{name}": value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, Task | Flow) and value.fn.__module__ == module.__name__
    }


SENT = sent()


def functions(function: Callable[..., Any] | None) -> Iterator[types.FunctionType]:
    while function is not None:
        assert isinstance(function, types.FunctionType)
        yield function
        function = getattr(function, "__wrapped__", None)


def named(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from named(constant)


def state(function: types.FunctionType) -> list[str]:
    return [
        name
        for name in named(function.__code__)
        if isinstance(function.__globals__.get(name), MUTABLE) or _is_unsendable(function, name)
    ]


def _is_unsendable(function: types.FunctionType, name: str) -> bool:
    try:
        cloudpickle.dumps(function.__globals__.get(name))
    except Exception:
        return True
    return False


def test_the_stages_are_among_them() -> None:
    assert {"tasks.load.load", "tasks.infer.infer", "tasks.publish.publish", "flows.eval.flow.evaluate"} <= {
        *SENT
    }


@pytest.mark.parametrize("name", sorted(SENT))
def test_a_task_names_no_state_of_its_module(name: str) -> None:
    found = {function.__qualname__: state(function) for function in functions(SENT[name].fn)}
    assert not any(found.values()), f"{name} would take its process's state along: {found}"


READ = """
import inspect, sys
import cloudpickle, pyarrow as pa
from tasks.caching import Workspace
load, step = cloudpickle.load(sys.stdin.buffer)
rows = inspect.unwrap(load.fn)(step, Workspace(store="store", journal_dir="."))
print(pa.Table.from_batches(list(rows)).num_rows)
"""


def test_rows_that_were_read_ahead_stay_in_their_process(step: Any, tmp_path: Path) -> None:
    with (tmp_path / "rows").open("w+b") as spool:
        keep_ahead(step, _InFile(spool), 0)
        content = cloudpickle.dumps((load, step))
        taken = list(inspect.unwrap(load.fn)(step, None))
    assert taken == ["of the file"]
    ran = subprocess.run(
        [sys.executable, "-c", READ], input=content, cwd=PROJECT, capture_output=True, check=False
    )
    assert (ran.stdout, ran.stderr) == (b"%d\n" % sum(batch.num_rows for batch in rows_of(step)), b"")


class _InFile:
    def __init__(self, file: Any) -> None:
        self.file = file

    def __iter__(self) -> Iterator[Any]:
        yield "of the file"
