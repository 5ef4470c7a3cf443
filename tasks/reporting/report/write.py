"""How a page of any number of samples is written in bounded memory: in two passes.

The first pass counts, diagnoses and decides what is shown; the second writes blocks of samples into the page
as they come. Nothing but counters, the list's columns and one block is in memory::

    samples ─► Scan, Diagnosis, Usage ─► head of the page
    samples ─► chosen ones ─► blocks ─► index, script
"""

import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TextIO

from tasks.comparison.trends import LearningCurve
from tasks.datasets.files import row_places
from tasks.reporting.diagnostics import Diagnosis
from tasks.reporting.diagnostics.findings import Diagnostic
from tasks.reporting.page.html import BlockWriter, packed_element, page_parts
from tasks.reporting.page.samples import SampleIndex, SampleRecords, patterns
from tasks.reporting.page.spent import TokensSpent, spent_curves
from tasks.reporting.report.context import Usage, page_context
from tasks.reporting.report.learning import learning_context
from tasks.reporting.report.select import PageLimits, Scan
from tasks.reporting.view import RunView, SampleView, result_rows
from tasks.store.home import as_open_as_its_folder, private_folder

SCRIPTS: Final = ("dom.js", "unpack.js", "search.js", "sample.js", "browser.js", "page.js", "report.js")
KEPT_BYTES: Final = 1 << 25  # runs up to this size are not read a second time


@dataclass(frozen=True)
class WrittenReport:
    """Where the page is, how many samples it shows of how many, and what the diagnostics found on the way."""

    path: Path
    n_samples: int
    n_shown: int
    diagnostics: tuple[Diagnostic, ...]


def write_report(
    view: RunView,
    path: str | Path,
    limits: PageLimits | None = None,
    learning: Sequence[LearningCurve] = (),
) -> WrittenReport:
    """Writes the page to ``path`` in a streaming manner; the file appears when it is complete. ``learning``
    are the curves of a sweep over checkpoints.

    Beyond ``limits.samples`` the page holds all failed samples and a seeded choice of the others and says so.
    Raises OSError if the file can't be written.
    """
    limits = limits or PageLimits()
    passes = _Passes(view)
    rows = result_rows(view.results)
    scan = Scan(limits, frozenset(row.pair for row in rows if row.higher_is_better is False))
    diagnosis, usage, spent = Diagnosis(view), Usage(), TokensSpent()
    for sample in passes.first():
        scan.add(sample)
        diagnosis.add(sample)
        usage.add(sample)
        spent.add(sample)
    selection, diagnostics = scan.select(), placed(diagnosis.finish(), view.manifest)
    context = page_context(view.manifest, rows, diagnostics, usage, selection.statement)
    context["spent"] = spent_curves(spent)
    context["learning"] = learning_context(learning)
    before, after = page_parts("report.html", context, SCRIPTS)

    path = Path(path)
    with replacing(path) as file:
        file.write(before)
        chosen = passes.second(selection.chosen)
        shown = write_samples(file, "run", chosen, selection.cap, view, limits)
        file.write(after)
    return WrittenReport(path, scan.samples, shown, diagnostics)


def places_of(positions: Collection[int], manifest: Mapping[str, Any]) -> dict[int, str]:
    """Position in the dataset → where the item stands in its file ("questions.jsonl:7"); nothing where the
    dataset is no file, or is not there any more."""
    config = manifest.get("config")
    dataset = config.get("dataset") if isinstance(config, Mapping) else None
    path = dataset.get("path") if isinstance(dataset, Mapping) else None
    if not path or not isinstance(config, Mapping):
        return {}
    return row_places(Path(str(config.get("base_dir") or ".")) / Path(str(path)).expanduser(), positions)


def placed(diagnostics: Sequence[Diagnostic], manifest: Mapping[str, Any]) -> tuple[Diagnostic, ...]:
    """The findings with the places of their examples in the dataset's file, where it is a file and there."""
    wanted = {e.doc_id for finding in diagnostics for e in finding.examples if e.doc_id is not None}
    places = places_of(wanted, manifest)
    return tuple(
        replace(
            finding,
            examples=tuple(
                replace(e, place="" if e.doc_id is None else places.get(e.doc_id, ""))
                for e in finding.examples
            ),
        )
        for finding in diagnostics
    )


def write_samples(
    file: TextIO,
    name: str,
    chosen: Iterable[SampleView],
    cap: int | None,
    view: RunView,
    limits: PageLimits,
) -> int:
    """Writes the chosen samples as blocks, then their index, under ``name``; returns how many samples that
    were. Texts longer than ``cap`` characters are shown in part."""
    config = view.manifest.get("config")
    records = SampleRecords(patterns(config if isinstance(config, dict) else {}), cap, view.media)
    blocks, index, shown = BlockWriter(name, file.write), SampleIndex(), 0
    for sample in chosen:
        if (
            blocks.written > limits.file_bytes
        ):  # the estimate was too low: keep every sample, but little of it
            records.cap = min(records.cap or 500, 500)
        number, question = records.question(sample)
        record = records.sample(sample, number)
        blocks.add(record, question, records.size(record, question))
        index.add(sample, number)
        shown += len(sample.responses)
    blocks.close()
    places = places_of(index.positions, view.manifest)
    file.write(packed_element(f"{name}-index", index.record(blocks.sizes, records.shortened, places)))
    return shown


class _Passes:
    """Two passes over the samples; a small run is kept after the first, since reading it again costs more."""

    def __init__(self, view: RunView) -> None:
        self._view = view
        self._kept: list[SampleView] | None = []

    def first(self) -> Iterator[SampleView]:
        size = 0
        for sample in self._view.samples():
            if self._kept is not None:
                size += (
                    1000
                    + len(sample.prompt)
                    + sum(len(r.text or "") + len(r.reasoning or "") for r in sample.responses)
                )
                self._kept.append(sample)
                if size > KEPT_BYTES:
                    self._kept = None
            yield sample

    def second(self, positions: Collection[int] | None) -> Iterator[SampleView]:
        if self._kept is None:
            return self._view.at(positions)
        return (sample for at, sample in enumerate(self._kept) if positions is None or at in positions)


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """A text file that takes the place of ``path`` once it was written to the end, and never half of it."""
    private_folder(path.parent)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace", newline="\n") as file:
            yield file
        as_open_as_its_folder(Path(name))
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
