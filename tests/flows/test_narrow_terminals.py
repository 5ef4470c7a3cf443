"""Every table is whole at any width of the terminal: no digit and no name is cut.

A pseudo-terminal is made as wide as asked; the commands' own functions print on it.
"""

import os
import pty
import re
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
WIDTHS = (110, 100, 80, 60, 40)
PRINTED = PROJECT / "tests" / "flows" / "printed_tables.py"
NAMES = {
    "eval": ("flexible-extract", "pass@8(exact_match)", "a_model_with_quite_a_long_name"),
    "compare": ("my_benchmark", "last-number", "exact_match", "regression"),
    "suite": ("my_benchmark", "last-number", "exact_match", "regression"),
    "sql": ("run_id", "sums-0123456789abcdef"),
    "power": ("more than the dataset has",),
}
NUMBERS = {
    "eval": ("7.6771", "0.6905", "0.0722", "0.5397", "0.8093", "1,319"),
    "compare": ("0.6667", "0.3333", "-0.3333", "-0.3885", "-0.2777", "< 0.001", "0/100/200", "100.0%"),
    "suite": ("0.6667", "0.3333", "-0.3333", "-0.3885", "-0.2777", "0.2815"),
    "sql": ("0.690512", "123456"),
    "power": ("1,319", "21,104", "2,110,400", "1,055,200", "1,234.50"),
}


def shown() -> str:
    """What the script prints on a pseudo-terminal that it makes as wide as each of WIDTHS."""
    mine, its = pty.openpty()
    unset = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    process = subprocess.Popen(
        [sys.executable, str(PRINTED), *map(str, WIDTHS)], stdin=its, stdout=its, stderr=its, cwd=PROJECT,
        env={**environment, "TERM": "xterm", "PYTHONPATH": str(PROJECT)},
    )  # fmt: skip
    os.close(its)
    chunks: list[bytes] = []

    def read() -> None:
        with suppress(OSError):  # the other end was closed
            while chunk := os.read(mine, 65536):
                chunks.append(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    code = process.wait(120)
    reader.join(10)
    os.close(mine)
    text = b"".join(chunks).decode().replace("\r\n", "\n")
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert code == 0, text
    return text


@pytest.fixture(scope="module")
def tables() -> dict[tuple[int, str], str]:
    """Each command's text by width and name."""
    parts = re.split(r"^== (\d+) (\w+)\n", shown(), flags=re.MULTILINE)[1:]
    return {(int(w), name): text for w, name, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True)}


@pytest.mark.parametrize("command", NAMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_no_name_and_no_digit_is_cut_at_any_width(
    width: int, command: str, tables: dict[tuple[int, str], str]
) -> None:
    text = tables[width, command]
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width
    words = {word.rstrip(",") for word in re.split(r"[\s\[\]]+", text)}
    for whole in (*NAMES[command], *NUMBERS[command]):
        assert whole in words or (" " in whole and whole in " ".join(text.split())), (whole, text)


def test_notes_and_intervals_go_below_a_row_before_rows_become_blocks(
    tables: dict[tuple[int, str], str],
) -> None:
    assert re.search(r"^ {4}Interval \[0\.2815, 0\.3885\]", tables[110, "suite"], re.MULTILINE)
    assert re.search(r"^Value +0\.3333$", tables[60, "suite"], re.MULTILINE)
