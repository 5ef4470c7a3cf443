"""responses.jsonl: what every model answered, one line a sample."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from tasks.evaluation.response_rows import COLUMNS, response_rows
from tasks.reporting.exports_lines import write_lines
from tasks.reporting.exports_records import AnswerPart

Row = dict[str, Any]


def write_responses(path: Path, parts: Iterable[AnswerPart]) -> int:
    """Writes all parts in their order and returns the number of lines.

    ``total_samples`` counts the samples of the line's item by the same model and prompt template.
    """
    return write_lines(path, (row for part in parts for row in exported_responses(part)))


def exported_responses(part: AnswerPart) -> Iterator[Row]:
    """The lines of one part; an item's samples follow each other, so only one item's are held at a time."""
    for _, samples in groupby(_rows(part), key=itemgetter("item_id")):
        held = list(samples)
        for row in held:
            yield _with_total(row, len(held))


def _rows(part: AnswerPart) -> Iterator[Row]:
    for batch in part.responses(COLUMNS):
        yield from response_rows(batch, part.origin)


def _with_total(row: Row, total: int) -> Row:
    identity = {name: row[name] for name in ("item_id", "sample_id", "sample_index")}
    return identity | {"total_samples": total} | row
