"""How a page of any number of samples is written in bounded memory: in two passes.

The first pass counts, diagnoses and decides what is shown; the second writes blocks of samples into the page
as they come. Nothing but counters, the list's columns and one block is in memory::

    samples ─► FirstPass ─► head of the page
    samples ─► chosen ones ─► blocks ─► index, script

The first pass over a large run is made in parts, wherever there is a processor for one, and merged.
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
from tasks.reporting.report.context import Usage, page_context
from tasks.reporting.report.curves import TokensSpent, learning_context, spent_curves
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


class FirstPass:
    """What the page has to know of all samples before the first is written: how many, what is wrong with
    them, which are shown."""

    def __init__(self, view: RunView, limits: PageLimits | None = None) -> None:
        lower = frozenset(row.pair for row in result_rows(view.results) if row.higher_is_better is False)
        self.scan = Scan(limits or PageLimits(), lower)
        self.diagnosis = Diagnosis(view)
        self.usage = Usage()
        self.spent = TokensSpent()

    def add(self, sample: SampleView) -> None:
        """Takes one sample into account."""
        self.scan.add(sample)
        self.diagnosis.add(sample)
        self.usage.add(sample)
        self.spent.add(sample)

    def merge(self, other: "FirstPass") -> None:
        """Takes the samples that come next into account, which another pass went through."""
        self.scan.merge(other.scan)
        self.diagnosis.merge(other.diagnosis)
        self.usage.merge(other.usage)
        self.spent.merge(other.spent)


def write_report(
    view: RunView,
    path: str | Path,
    limits: PageLimits | None = None,
    learning: Sequence[LearningCurve] = (),
    first: FirstPass | None = None,
) -> WrittenReport:
    """Writes the page to ``path`` in a streaming manner; the file appears when it is complete. ``learning``
    are the curves of a sweep over checkpoints, ``first`` is the first pass, with the same limits, where it
    was made already.

    Beyond ``limits.samples`` the page holds all failed samples and a seeded choice of the others and says so.
    Raises OSError if the file can't be written.
    """
    limits = limits or PageLimits()
    kept = KeptSamples()
    if first is None:
        first = FirstPass(view, limits)
        for sample in view.samples():
            kept.add(sample)
            first.add(sample)
    selection, diagnostics = first.scan.select(), placed(first.diagnosis.finish(view), view.manifest)
    rows = result_rows(view.results)
    context = page_context(view.manifest, rows, diagnostics, first.usage, selection.statement)
    context["spent"] = spent_curves(first.spent)
    context["learning"] = learning_context(learning)
    before, after = page_parts("report.html", context, SCRIPTS)

    path = Path(path)
    with replacing(path) as file:
        file.write(before)
        chosen = kept.at(selection.chosen, view)
        shown = write_samples(file, "run", chosen, selection.cap, view, limits)
        file.write(after)
    return WrittenReport(path, first.scan.samples, shown, diagnostics)


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


class KeptSamples:
    """The samples of a small run, kept for the second pass, since reading them again costs more."""

    def __init__(self) -> None:
        self._samples: list[SampleView] | None = []
        self._size = 0

    def add(self, sample: SampleView) -> None:
        """Keeps the next sample, or none at all any more where they are too large."""
        if self._samples is not None:
            texts = sum(len(one.text or "") + len(one.reasoning or "") for one in sample.responses)
            self._size += 1000 + len(sample.prompt) + texts
            self._samples.append(sample)
            if self._size > KEPT_BYTES:
                self._samples = None

    def at(self, positions: Collection[int] | None, view: RunView) -> Iterator[SampleView]:
        """The samples at these positions, None: all; read once more where none was kept."""
        if not self._samples:
            return view.at(positions)
        return (sample for at, sample in enumerate(self._samples) if positions is None or at in positions)


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
