"""``report.html``: one self-contained page about one run, of any number of samples, written in bounded
memory: in two passes.

The first pass counts, diagnoses and decides what is shown; the second writes blocks of samples into the
page as they come. Nothing but counters, the list's columns and one block is in memory::

    samples ─► FirstPass ─► head of the page
    samples ─► chosen ones ─► blocks ─► index, script

The first pass over a large run is made in parts, wherever there is a processor for one, and merged.

Which samples are shown, and how much of their texts, is what a browser can bear, all failures among it.
The first pass keeps some twenty bytes a sample and no text for that. From them follows a choice that
depends on the seed and on nothing else, not on the order of the samples. The comparison's page reuses the
writer and the limits.
"""

import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, TextIO

from metrics.json_values import texts_in
from tasks.comparison.trends import LearningCurve, known_of_models
from tasks.reporting import numbers
from tasks.reporting.context import Usage, page_context
from tasks.reporting.diagnostics import Diagnosis
from tasks.reporting.diagnostics.findings import Diagnostic
from tasks.reporting.items import places_of
from tasks.reporting.page import (
    BlockWriter,
    SampleIndex,
    SampleRecords,
    packed_element,
    page_parts,
    parsed_chat,
)
from tasks.reporting.plots import TokensSpent, learning_context, spent_curves
from tasks.reporting.spans import patterns
from tasks.reporting.view import RunView, SampleView, result_rows
from tasks.store.home import whole_text

FAILED: Final = 0  # a request failed or a response is unscored
WRONG: Final = 1  # a score of 0, or a label that did not pass
OTHER: Final = 2

BASE64: Final = 4 / 3
PROBE_BYTES: Final = 1 << 18
PROBE_EVERY: Final = 16  # one block in sixteen is compressed to see how well this run's text compresses


@dataclass(frozen=True)
class PageLimits:
    """What a page may hold: samples (responses), bytes of the file, bytes of text once unpacked; ``seed`` of
    the choice."""

    samples: int = 20_000
    file_bytes: int = 54_000_000
    text_bytes: int = 120_000_000
    seed: int = 0


@dataclass(frozen=True)
class SampleSelection:
    """Which samples (by position) are shown; texts longer than ``cap`` characters are shown in part."""

    chosen: frozenset[int] | None  # None: all of them
    cap: int | None
    statement: str | None  # in words what is left out; None: nothing is


class Scan:
    """The first pass: what kind each sample is, how large, and where it stands in the draw."""

    def __init__(self, limits: PageLimits, lower_is_better: frozenset[str] = frozenset()) -> None:
        self.limits = limits
        self._lower_is_better = lower_is_better
        self._kinds = array("B")
        self._draws = array("Q")
        self._responses = array("L")
        self._bytes = array("Q")
        self._lengths: Counter[int] = Counter()  # bit length of a text's length → texts
        self._probe = _Probe()

    def add(self, sample: SampleView) -> None:
        """Takes one sample into account."""
        texts = _texts(sample)
        name = "\0".join((str(self.limits.seed), sample.item_id, sample.model_name, sample.prompt_template))
        digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        self._kinds.append(self._kind(sample))
        self._draws.append(int.from_bytes(digest, "big"))
        self._responses.append(max(1, len(sample.responses)))
        size = 0
        for text in texts:
            size += len(text)
            self._lengths[len(text).bit_length()] += 1
        self._bytes.append(size + 200)
        self._probe.add(texts, size)

    def merge(self, other: "Scan") -> None:
        """Takes the samples that come next, which another pass went through, into account."""
        for mine, theirs in (
            (self._kinds, other._kinds),
            (self._draws, other._draws),
            (self._responses, other._responses),
            (self._bytes, other._bytes),
        ):
            mine.extend(theirs)
        self._lengths.update(other._lengths)
        self._probe.merge(other._probe)

    @property
    def samples(self) -> int:
        """Responses seen."""
        return sum(self._responses)

    def select(self) -> SampleSelection:
        """Everything if it fits; else all failures, all wrong answers if they fit too, and a draw from the
        others."""
        total, limit = self.samples, self.limits.samples
        if total <= limit:
            return SampleSelection(None, self._cap(self._bytes, 1.0), None)
        sizes = [0, 0, 0]
        for kind, size in zip(self._kinds, self._responses, strict=True):
            sizes[kind] += size
        all_wrong = sizes[FAILED] + sizes[WRONG] <= limit
        certain = {FAILED, WRONG} if all_wrong else {FAILED}
        chosen, shown = self._draw(certain)
        statement = _statement(shown, total, sizes, all_wrong, self.limits.seed)
        return SampleSelection(
            frozenset(chosen), self._cap([self._bytes[i] for i in chosen], shown / total), statement
        )

    def _draw(self, certain: set[int]) -> tuple[list[int], int]:
        chosen = [i for i, kind in enumerate(self._kinds) if kind in certain]
        shown = sum(self._responses[i] for i in chosen)
        others = (i for i, kind in enumerate(self._kinds) if kind not in certain)
        for i in sorted(others, key=self._draws.__getitem__):
            if shown + self._responses[i] > self.limits.samples:
                break
            chosen.append(i)
            shown += self._responses[i]
        return chosen, shown

    def _cap(self, sizes: Iterable[int], share: float) -> int | None:
        """The longest text to show in full, so that file and browser hold all of the chosen ones; None:
        any."""
        size = sum(sizes)
        allowed = min(self.limits.text_bytes, self.limits.file_bytes / self._probe.ratio())
        if size <= allowed:
            return None
        cap = 1 << 24
        while (
            cap > 256
            and share * sum(n * min(cap, 3 << bits >> 2) for bits, n in self._lengths.items()) > allowed
        ):
            cap //= 2
        return cap

    def _kind(self, sample: SampleView) -> int:
        if sample.failed:
            return FAILED
        lower = self._lower_is_better
        wrong = any(0 in scores for pair, scores in sample.scores.items() if pair not in lower)
        return WRONG if wrong or any(label.passed is False for label in sample.labels) else OTHER


class _Probe:
    """Compresses a block of text now and then, to foresee the size of the file."""

    def __init__(self) -> None:
        self._blocks = 0
        self._size = 0
        self._block: list[str] = []
        self._raw = 0
        self._packed = 0

    def add(self, texts: list[str], size: int) -> None:
        if self._blocks % PROBE_EVERY == 0:
            self._block += texts
        self._size += size
        if self._size >= PROBE_BYTES:
            self._close()

    def merge(self, other: "_Probe") -> None:
        """Adds what another one compressed; what it still holds is compressed with what is held here."""
        self._raw, self._packed = self._raw + other._raw, self._packed + other._packed
        self._block += other._block
        self._size += other._size
        if self._size >= PROBE_BYTES:
            self._close()

    def ratio(self) -> float:
        """Bytes in the file a character of text; 1.2 as long as nothing was compressed."""
        return BASE64 * self._packed / self._raw if self._raw else 1.2

    def _close(self) -> None:
        if self._block:
            raw = "\n".join(self._block).encode("utf-8", "replace")
            self._raw += len(raw)
            self._packed += len(zlib.compress(raw, 6))
        self._blocks, self._size, self._block = self._blocks + 1, 0, []


def _texts(sample: SampleView) -> list[str]:
    """The texts of which the page shows long ones in part."""
    texts: list[str | None] = [*texts_in(parsed_chat(sample.prompt) if sample.chat else sample.prompt)]
    texts += [*texts_in(sample.references), *sample.choices]
    for response in sample.responses:
        texts += (response.text, response.reasoning, response.error)
        if response.tool_calls or response.transcript:
            texts += texts_in([response.tool_calls, parsed_chat(response.transcript or "")])
    texts += texts_in(sample.details)
    texts += texts_in(sample.reasons)
    for label in sample.labels:
        texts += texts_in(label.details)
    return [text for text in texts if text]


def _statement(shown: int, total: int, sizes: list[int], all_wrong: bool, seed: int) -> str:
    parts = [f"all {numbers.count(sizes[FAILED])} that failed or are unscored"] if sizes[FAILED] else []
    if all_wrong and sizes[WRONG]:
        parts.append(f"all {numbers.count(sizes[WRONG])} that scored 0 or did not pass")
    parts.append(
        f"a random choice of the others (seed {seed})" if parts else f"a random choice (seed {seed})"
    )
    return (
        f"{numbers.count(shown)} of {numbers.plural(total, 'sample')} can be looked through here: "
        f"{', '.join(parts)}. Scores, counts and findings are those of all samples; "
        "responses.jsonl holds every one."
    )


SCRIPTS: Final = ("dom.js", "unpack.js", "search.js", "sample.js", "browser.js", "page.js", "report.js")


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

    @classmethod
    def over(cls, view: RunView, limits: PageLimits | None = None) -> "FirstPass":
        """The pass over all samples of a run, or of a part of one."""
        found = cls(view, limits)
        for sample in view.samples():
            found.add(sample)
        return found

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
    Raises FileUnwritable.
    """
    limits = limits or PageLimits()
    first = first or FirstPass.over(view, limits)
    selection, diagnostics = first.scan.select(), placed(first.diagnosis.finish(view), view.manifest)
    rows = result_rows(view.results)
    context = page_context(view.manifest, rows, diagnostics, first.usage, selection.statement)
    context["spent"] = spent_curves(first.spent)
    context["learning"] = learning_context(learning, known_of_models(view.manifest))
    before, after = page_parts("report.html", context, SCRIPTS)

    path = Path(path)
    with whole_text(path) as file:
        file.write(before)
        shown = write_samples(file, "run", view.at(selection.chosen), selection.cap, view, limits)
        file.write(after)
    return WrittenReport(path, first.scan.samples, shown, diagnostics)


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
