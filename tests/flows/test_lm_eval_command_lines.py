"""Command lines of lm-evaluation-harness's documentation give its prompts and values.

What an installed harness gave is in ``fixtures/lm_eval_commands/expected.json``, which
``python -m bench.lm_eval.command_lines --record`` writes.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.lm_eval.command_lines import EXPECTED, command_lines, differences, outcome, words
from bench.lm_eval.served import byte_tokenizer
from tasks.models.demo.server import serve

LINES = [line["run"] for line in command_lines()]
THEIRS: dict[str, Any] = json.loads(EXPECTED.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    with serve() as server:
        yield server.base_url


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("tokenizers")
    return byte_tokenizer(tmp_path_factory.mktemp("words") / "tokenizer")


def test_there_are_thirty_lines_and_each_was_run_by_the_harness() -> None:
    assert len(LINES) == len(set(LINES)) >= 30
    assert set(THEIRS) == set(LINES)


@pytest.mark.parametrize("line", LINES)
def test_a_documented_line_gives_the_harnesss_prompts_and_values(
    line: str, lm_eval: Callable[..., Any], base_url: str, tokenizer: Path, tmp_path: Path
) -> None:
    out = tmp_path / "theirs"
    ran = lm_eval(*words(line, base_url, tokenizer, out))
    assert ran.code == 0, ran.err
    assert [*differences(THEIRS[line], json.loads(json.dumps(outcome(out))))] == []
