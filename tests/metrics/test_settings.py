"""The published table of coverage is that of the settings which the simulations hold."""

import itertools
from pathlib import Path

from bench.coverage import settings

PAGE = Path(__file__).parents[2] / "docs" / "statistics.md"


def test_the_published_table_lists_every_setting_in_order() -> None:
    lines = PAGE.read_text().splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("| data | setting"))
    table = itertools.takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    published = [(row[0].removeprefix("| "), row[1]) for row in (line.split(" | ") for line in table)]
    assert published == [(setting.family, setting.name) for setting in settings()]
