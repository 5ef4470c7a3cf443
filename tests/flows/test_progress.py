"""How far it is, as text: in a real pseudo-terminal of several widths, in a log file, in a notebook."""

import fcntl
import io
import os
import pty
import queue
import re
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
from prefect.context import TaskRunContext

from tasks import run_page
from tasks.models.progress import Progress, RunningFigure
from tasks.reporting import progress as module
from tasks.reporting.progress import (
    ProgressBoard,
    combined,
    in_notebook,
    notebook_board,
    open_board,
    progress_line,
    progress_markdown,
)

ROOT = Path(__file__).resolve().parents[2]
NAME = "meta-llama/Llama-3.3-70B-Instruct"


def progress(**fields: Any) -> Progress:
    counts = {"done": 250, "expected": 1000, "cached": 3, "failed": 2, "retries": 5}
    load = {"in_flight": 32, "concurrency": 64, "rate": 12.34, "tokens_per_second": 1800.2}
    given = {**counts, **load, "cost": 0.1234, "seconds_left": 200.0, "tokens": 98765}
    return Progress(**(given | fields))  # type: ignore[arg-type]


BAR = "━━━━────────────"
COUNTS = "12.3/s  2 errors  98,765 tokens  1,800 tokens/s  0.1234 USD"
ALL = f"{NAME}  {BAR}  250 of 1,000  3 min 20 s left  {COUNTS}"


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (24, "meta…ruct  250 of 1,000"),
        (50, f"{NAME}  250 of 1,000"),
        (60, "meta-llama/Lla…-70B-Instruct  250 of 1,000  3 min 20 s left"),
        (70, f"meta-llama…-Instruct  {BAR}  250 of 1,000  3 min 20 s left"),
        (80, f"meta-llama…-Instruct  {BAR}  250 of 1,000  3 min 20 s left  2 errors"),
        (100, f"meta-llama…-Instruct  {BAR}  250 of 1,000  3 min 20 s left  12.3/s  2 errors  0.1234 USD"),
        (140, ALL.replace(NAME, "meta-llama/Lla…3-70B-Instruct")),
        (200, f"{ALL}  5 retries"),
        (None, f"{ALL}  5 retries".replace(f"{NAME}  {BAR}  ", f"{NAME}: ").replace("  ", ", ")),
    ],
)
def test_a_line_leaves_out_what_matters_least(width: int | None, line: str) -> None:
    assert progress_line(NAME, progress(), width, currency="USD") == line


@pytest.mark.parametrize("width", range(20, 220))
def test_no_line_is_wider_than_the_terminal_and_none_loses_name_or_count(width: int) -> None:
    for model in ("qwen", NAME, "x" * 300):
        line = progress_line(model, progress(), width)
        assert len(line) < max(width, 28)
        assert "250 of 1,000" in line
        assert line.startswith(model[:2])


@pytest.mark.parametrize(
    ("width", "beside"),
    [
        (100, "3 min 20 s left  12.3/s  2 errors"),
        (130, "3 min 20 s left  12.3/s  2 errors  exact_match 0.69 so far (128 items)"),
        (None, "3 min 20 s left, 12.3/s, 2 errors, exact_match 0.69 so far (128 items), 98,765 tokens"),
    ],
)
def test_a_running_score_says_of_how_many_items_it_is(width: int | None, beside: str) -> None:
    watched = progress(running=RunningFigure("exact_match", 88.32, 128), tokens_per_second=0, retries=0)
    line = progress_line(NAME, watched, width)
    assert beside in line
    assert "0.69" not in progress_line(NAME, progress(), width)


def test_partitions_share_a_running_score_and_the_ui_shows_it() -> None:
    parts = [progress(running=RunningFigure("f1", total, items)) for total, items in ((1.5, 2), (0.5, 6))]
    together = combined([*parts, progress()])
    assert together.running == RunningFigure("f1", 2.0, 8)
    assert progress_markdown({"m": together}).splitlines()[-1].endswith("| f1 0.25 so far (8 items) |")


def test_what_is_not_known_is_left_out() -> None:
    unknown = progress(expected=None, seconds_left=None, cost=0.0, retries=0)
    assert progress_line("m", unknown, 140) == "m  250  12.3/s  2 errors  98,765 tokens  1,800 tokens/s"


class Screen:
    """What a terminal shows after the control sequences that our output uses."""

    def __init__(self) -> None:
        self.rows: list[str] = [""]
        self.at = (0, 0)

    def feed(self, text: str) -> None:
        for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
            row, column = self.at
            if part == "\r":
                self.at = row, 0
            elif part == "\n":
                self.at = row + 1, 0
                self.rows += [""] * (row + 2 - len(self.rows))
            elif part.startswith("\x1b["):
                self._control(part[-1], int(re.sub(r"\D", "", part) or 1))
            else:
                line = self.rows[row].ljust(column)
                self.rows[row] = line[:column] + part + line[column + len(part) :]
                self.at = row, column + len(part)

    def _control(self, kind: str, number: int) -> None:
        row, column = self.at
        if kind == "A":
            self.at = max(0, row - number), column
        elif kind == "K":
            self.rows[row] = "" if number == 2 else self.rows[row][:column]

    @property
    def lines(self) -> list[str]:
        return [row.rstrip() for row in self.rows if row.strip()]


def on_terminal(columns: int, command: list[str], environment: dict[str, str]) -> tuple[list[list[str]], int]:
    """What stood on a terminal of so many columns, after each piece that was written, and the exit code."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=child, stdout=child, stderr=child, env=environment, start_new_session=True
    )
    os.close(child)
    screen, frames, waiting = Screen(), [], ""
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:
            break  # the last writer is gone
        if not piece:
            break
        waiting += piece.decode(errors="replace")
        # A sequence may be cut between two pieces.
        whole, _, rest = (
            waiting.rpartition("\x1b") if re.search(r"\x1b[^A-Za-z]*$", waiting) else (waiting, "", "")
        )
        waiting = f"\x1b{rest}" if rest or whole != waiting else ""
        screen.feed(whole)
        frames.append(screen.lines)
    os.close(parent)
    return frames, process.wait(timeout=120)


def environment(**more: str) -> dict[str, str]:
    """The surroundings of a process on a terminal of its own: the size is the terminal's, and not that which
    pytest's workers are told of theirs."""
    whole = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **more}
    return {key: value for key, value in whole.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}


BOARD = f"""
import sys, time
from tests_progress import progress
from tasks.reporting.progress import ProgressBoard, open_board, reporter
with open_board(ProgressBoard(sys.stderr, currency="USD", idle="evaluating sums")):
    time.sleep(0.7)
    reporter("{NAME}")(progress())
    reporter("qwen", 0)(progress(failed=0))
    reporter("qwen", 1)(progress(failed=0))
    time.sleep(0.7)
    reporter("qwen", 0)(progress(done=1000))
    reporter("qwen", 1)(progress(done=1000))
    time.sleep(0.7)
print("all done")
"""
QWEN = f"qwen  {BAR}  500 of 2,000  3 min 20 s left"
WIDE = {
    60: ["meta-llama/Lla…-70B-Instruct  250 of 1,000  3 min 20 s left", QWEN],
    80: [
        f"meta-llama…-Instruct  {BAR}  250 of 1,000  3 min 20 s left  2 errors",
        f"{QWEN}  24.7/s  0 errors",
    ],
    140: [
        ALL.replace(NAME, "meta-llama/Lla…3-70B-Instruct"),
        f"{QWEN}  24.7/s  0 errors  197,530 tokens  3,600 tokens/s  0.2468 USD  10 retries",
    ],
}


@pytest.mark.parametrize("columns", WIDE)
def test_bars_stand_on_a_terminal_of_this_width_and_go_when_all_is_done(columns: int, tmp_path: Path) -> None:
    (tmp_path / "tests_progress.py").write_text(
        "from tasks.models.progress import Progress\n" + _source_of_progress(), encoding="utf-8"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    frames, code = on_terminal(columns, [sys.executable, "-c", BOARD], environment(PYTHONPATH=path))
    assert code == 0
    assert ["evaluating sums…"] in frames
    assert WIDE[columns] in frames
    assert WIDE[columns][:1] in frames, "a model that is done has no line any more"
    assert frames[-1] == ["all done"]
    assert max(len(line) for frame in frames for line in frame) < columns


def test_a_run_says_at_once_what_it_does_and_at_its_end_time_tokens_and_cost(
    tmp_path: Path, own_environment: dict[str, str]
) -> None:
    options = {
        "models": "[{name: demo, type: demo, config: {latency: 0.4, max_concurrency: 8}}]",
        "prices": "{currency: USD, demo: {prompt: 1000, completion: 1000}}",
    }
    command = [
        sys.executable,
        "-m",
        "flows.eval",
        "--store",
        str(tmp_path / "s"),
        "--output",
        str(tmp_path / "o"),
    ]
    for key, value in options.items():
        command += ["--set", f"{key}={value}"]
    frames, code = on_terminal(80, command, environment(**own_environment))
    assert code == 0
    assert next(frame for frame in frames if frame) == ["reading the config…"]
    flat = [line for frame in frames for line in frame]
    assert any(re.match(r"demo  [━─]{16}  \d+ of 42  .* left", line) for line in flat)
    last = frames[-1]
    assert not any("━" in line for line in last)
    told = " ".join(last[last.index(next(line for line in last if line.startswith("Prefect:"))) :])
    assert re.search(
        r"s; requests: asked 42, reused 0, 0 failed; steps: \d+ computed, 0 cached; "
        r"[\d,]+ tokens; [\d.]+ USD$",
        told,
    )


@pytest.mark.services
def test_a_run_shows_how_its_model_does_while_it_is_asked(
    tmp_path: Path, own_environment: dict[str, str]
) -> None:
    model = "models=[{name: demo, type: demo, config: {latency: 1.0, max_concurrency: 2}}]"
    folders = ["--store", str(tmp_path / "s"), "--output", str(tmp_path / "o")]
    command = [sys.executable, "-m", "flows.eval", *folders, "--set", model]
    frames, code = on_terminal(140, command, environment(**own_environment))
    assert code == 0
    flat = [line for frame in frames for line in frame]
    seen = re.compile(r"demo  [━─]{16}  \d+ of 42  .*  exact_match (0\.\d\d|1\.00) so far \(\d+ items?\)")
    told = sorted({line for line in flat if "demo" in line})
    assert any(seen.match(line) for line in told), told[-20:]


def _source_of_progress() -> str:
    import inspect

    return "from typing import Any\n" + inspect.getsource(progress)


def test_without_a_terminal_there_is_a_plain_line_each_time_that_something_moved() -> None:
    out = io.StringIO()
    board = ProgressBoard(out, currency="USD", seconds=0.05)
    with open_board(board):
        report = board.reporter("qwen")
        for done in (250, 600):
            report(progress(done=done))
            _wait_for(lambda done=done: f"{done} of" in out.getvalue())
        time.sleep(0.2)
    beside = "3 min 20 s left, 12.3/s, 2 errors, 98,765 tokens, 1,800 tokens/s, 0.1234 USD, 5 retries"
    assert out.getvalue().splitlines() == [f"qwen: {done} of 1,000, {beside}" for done in (250, 600)]


def _wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_short_run_writes_nothing_into_a_log() -> None:
    out = io.StringIO()
    with open_board(ProgressBoard(out)) as board:
        board.reporter("m")(progress())
    assert out.getvalue() == ""


def test_a_notebook_has_one_line_that_all_partitions_share_and_that_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(module, "NOTEBOOK_SECONDS", 0.02)
    with notebook_board() as one, notebook_board() as other:
        assert one is other
        one.reporter("qwen", 0)(progress())
        other.reporter("qwen", 1)(progress())
        _wait_for(lambda: "500 of 2,000" in out.getvalue())
    assert out.getvalue().count("\n") == 0
    screen = Screen()
    screen.feed(out.getvalue())
    assert screen.lines == []
    with notebook_board() as later:
        assert later is not one


def test_updates_of_a_page_come_from_the_task_run_that_the_page_is_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_page, "SECONDS_BETWEEN_UPDATES", 0.01)
    monkeypatch.setattr(run_page, "_run_log", lambda: run_page._log)
    came_from: queue.Queue[Any] = queue.Queue()
    monkeypatch.setattr(
        "prefect.artifacts.create_progress_artifact", lambda **_: came_from.put(TaskRunContext.get())
    )
    with TaskRunContext.model_construct() as run, run_page.progress_of("m", "infer m") as report:
        report(progress())
        assert came_from.get(timeout=60) is run


def test_a_script_is_no_notebook() -> None:
    assert not in_notebook()
