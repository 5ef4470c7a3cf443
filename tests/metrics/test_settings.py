"""The published table of coverage is that of the settings which the simulations hold."""

from pathlib import Path

from bench.coverage import settings

PAGE = Path(__file__).parents[2] / "docs" / "statistics.md"


def test_the_published_table_lists_every_setting_in_order() -> None:
    rows = [line.split(" | ")[:2] for line in PAGE.read_text().splitlines() if line.count(" | ") == 4]
    published = [(row[0].removeprefix("| "), row[1]) for row in rows if row[0] != "| data"]
    assert published == [(setting.family, setting.name) for setting in settings()]
