"""The published tables of coverage and levels are those of the settings which the simulations hold."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from bench.coverage import settings
from bench.levels import rates

PAGE = Path(__file__).parents[2] / "docs" / "statistics.md"


@pytest.mark.parametrize(("head", "made"), [("| data | setting", settings), ("| what | setting", rates)])
def test_the_published_table_lists_every_setting_in_order(head: str, made: Any) -> None:
    lines = PAGE.read_text().splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith(head))
    table = itertools.takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    published = [(row[0].removeprefix("| "), row[1]) for row in (line.split(" | ") for line in table)]
    assert published == [(setting.family, setting.name) for setting in made()]
