"""How long something took is told by a clock that never jumps."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
AGES = {
    "tasks/history/query.py",  # since a segment was written, as its name says
    "tasks/models/batches/records.py",  # since a job was made, perhaps by another process
    "tasks/models/limits/spending.py",  # since a request was sent, perhaps by another process
    "tasks/inspecting/block.py",  # since a file was written
    "tasks/models/wire.py",  # until the moment that a server named
    "tasks/serving/servers.py",  # since a file was written
    "flows/eval/start.py",  # since an attempt in another process began; never below zero
}
"""Files that hold now against a moment that only the calendar tells: a file's, or another machine's."""


def calendar_differences(source: str) -> list[int]:
    """Lines that subtract from, or something from, the time of day."""
    clocks = ("time.time()", "time()", "time.time_ns()", "time_ns()")
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)
        if any(clock in ast.unparse(side) for side in (node.left, node.right) for clock in clocks)
    ]


def test_no_duration_is_a_difference_of_times_of_day() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for package in ("flows", "tasks", "scorers", "metrics")
        for path in (ROOT / package).rglob("*.py")
        if calendar_differences(path.read_text("utf-8"))
    }
    assert found == AGES


def test_such_a_difference_is_found() -> None:
    assert calendar_differences("import time\nseconds = time.time() - began") == [2]
    assert calendar_differences("import time\nseconds = time.monotonic() - began") == []
