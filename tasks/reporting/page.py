"""What every page shares: it needs no network and runs nothing that a model wrote; and what its script
knows of samples: a record each, one a question, columns to list and filter by.

Templates, styles and scripts become one file whose content security policy allows exactly the style and
the script that are in it, by their digest: no request, no frame, no form, no inline handler. Samples are
in it as blocks of compressed JSON in elements that no browser runs; they are written as soon as they are
full, so that memory does not grow with the run. Templates escape, scripts set ``textContent``.

A record says where in a response a prediction stands.
"""

import base64
import gzip
import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from metrics.json_values import texts_in, with_leaves
from tasks.messages.media import REFERENCE, thumbnail
from tasks.reporting import numbers
from tasks.reporting.spans import Pattern, find_span, utf16
from tasks.reporting.view import OWN_FACETS, ResponseView, SampleView, mean_of_scored
from tasks.store.keys import json_bytes

ASSETS: Final = Path(__file__).parent / "assets"
ROWS_TALL: Final = 24
_FROM_THE_RIGHT: Final = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
BLOCK_BYTES: Final = 1 << 18


def page_parts(
    template: str, context: Mapping[str, Any], scripts: Sequence[str], nonce: str | None = None
) -> tuple[str, str]:
    """The page before and after its samples.

    ``template`` names a file in the assets that holds the marker ``<!-- samples -->`` once; ``scripts`` are
    joined in order into the page's one script; ``names_shown`` in the context are `isolated`. ``nonce`` lets
    a page load the script that is beside it: no text that was written before knows it.
    """
    style = read_asset("page.css")
    script = "(() => {\n'use strict';\n" + "\n".join(map(read_asset, scripts)) + "\n})();"
    beside = f" 'nonce-{nonce}'" if nonce is not None else ""
    policy = (
        f"default-src 'none'; script-src {_digest(script)}{beside}; style-src {_digest(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    page = (
        environment()
        .get_template(template)
        .render(**context, style=Markup(style), script=Markup(script), policy=policy, nonce=nonce)
    )
    before, after = isolated(page, map(escape, context.get("names_shown", ()))).split("<!-- samples -->")
    return before, after


def isolated(text: str, names: Iterable[str]) -> str:
    """A page or a text of one in which names that are written from right to left are held apart: what is
    beside them, numbers above all, would change places. Commands, data and addresses stay as they are."""
    found = sorted({str(name) for name in names if _FROM_THE_RIGHT.search(name)}, key=len, reverse=True)
    if not found:
        return text
    any_of_them = "|".join(map(re.escape, found))
    pattern = rf"<(?:(pre|script|style)\b.*?</\1>|meta\b[^>]*>)|(?<!\w)({any_of_them})(?!\w)"
    return re.sub(pattern, lambda m: f"\u2068{m[0]}\u2069" if m[2] else m[0], text, flags=re.DOTALL)


class BlockWriter:
    """Collects records and writes an element whenever a block is full; a block is compressed while the next
    one is collected.

    ``sizes`` tells how many samples each block holds, ``written`` how many characters there are of all but
    the last block.
    """

    def __init__(self, name: str, write: Callable[[str], Any]) -> None:
        self.name = name
        self.sizes: list[int] = []
        self.written = 0
        self._write = write
        self._questions: list[Any] = []
        self._samples: list[Any] = []
        self._pending = 0
        self._compressor = ThreadPoolExecutor(1, "compress")
        self._compressed: Future[str] | None = None

    def add(self, sample: Any, question: Any | None, size: int) -> None:
        """Adds a sample of about ``size`` characters, and the question it answers if that is new."""
        if question is not None:
            self._questions.append(question)
        self._samples.append(sample)
        self._pending += size
        if self._pending >= BLOCK_BYTES:
            self._end_block()

    def close(self) -> None:
        """Writes what is pending."""
        self._end_block()
        self._write_compressed()
        self._compressor.shutdown()

    def _end_block(self) -> None:
        if not self._samples:
            return
        # Never two at once: how far the compressor has come must not decide what is written.
        self._write_compressed()
        block = {"questions": self._questions, "samples": self._samples}
        self._compressed = self._compressor.submit(packed_element, self.name, block)
        self.sizes.append(len(self._samples))
        self._questions, self._samples, self._pending = [], [], 0

    def _write_compressed(self) -> None:
        if self._compressed is None:
            return
        element, self._compressed = self._compressed.result(), None
        self._write(element)
        self.written += len(element)


def packed_element(name: str, value: Any) -> str:
    """One script element with the JSON of ``value``, compressed."""
    packed = base64.b64encode(gzip.compress(json_bytes(value), 6, mtime=0)).decode()
    return f'<script type="application/octet-stream" data-name="{name}">{packed}</script>\n'


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Templates that escape everything and refuse a variable that is not there."""
    templates = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals["n"] = numbers
    templates.globals["tall"] = tall
    templates.filters["inline_json"] = lambda value: Markup(inline_json(value))
    return templates


def tall(rows: Sized) -> str:
    """The class of a table that is so long that it has a scroll bar of its own."""
    return " tall" if len(rows) > ROWS_TALL else ""


def read_asset(name: str) -> str:
    """A style or script. Neither may hold ``</``: it could end its element."""
    text = (ASSETS / name).read_text(encoding="utf-8")
    if "</" in text:
        raise ValueError(f"{name} holds '</', which would end its element in the page; write '<\\/'")
    return text


def _digest(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def inline_json(value: Any) -> str:
    """JSON for a ``<script type="application/json">`` element: no ``<``, ``>`` or ``&`` stands in it as
    itself."""
    text = json_bytes(value).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def parsed_chat(text: str) -> Any:
    """The messages of a chat; the text itself where it is no JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


SNIPPET: Final = 110
WHOLE: Final = "whole"
MOST_PICTURES: Final = 2_000
"""Thumbnails of a page, at most: some ten megabytes."""


class SampleRecords:
    """Turns samples into JSON-able records, texts longer than ``cap`` characters shortened in the middle."""

    def __init__(
        self,
        patterns: Mapping[str, Pattern],
        cap: int | None = None,
        media: Callable[[str], bytes] | None = None,
    ) -> None:
        self.cap = cap
        self._media = media
        self._pictures = 0
        self.shortened = 0
        self._patterns = patterns
        self._questions: dict[bytes, int] = {}

    def question(self, sample: SampleView) -> tuple[int, dict[str, Any] | None]:
        """Number of the sample's question (prompt, references, choices), and its record the first time."""
        parts = (sample.prompt, repr((sample.references, sample.choices, sample.gold)))
        digest = blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if digest in self._questions:
            return self._questions[digest], None
        number = self._questions[digest] = len(self._questions)
        return number, {
            "prompt": self._chat(sample.prompt) if sample.chat else self._text(sample.prompt),
            "chat": sample.chat,
            "references": self._value(list(sample.references)),
            "choices": self._value(list(sample.choices)),
            "gold": list(sample.gold),
            **self._thumbnails(sample),
        }

    def _thumbnails(self, sample: SampleView) -> dict[str, Any]:
        """Small pictures of the images that a chat names, by their references; none beyond what a page bears,
        and none of what is gone."""
        shown: dict[str, str] = {}
        if self._media is None or not sample.chat:
            return {}
        for digest in dict.fromkeys(REFERENCE.findall(sample.prompt)):
            if self._pictures >= MOST_PICTURES:
                break
            with suppress(Exception):  # sounds, and images that are gone: the reference is shown
                shown[f"sha256:{digest}"] = thumbnail(self._media(digest))
                self._pictures += 1
        return {"pictures": shown} if shown else {}

    def sample(self, sample: SampleView, question: int) -> dict[str, Any]:
        """The record of one sample; ``spans`` say where in a response a prediction stands."""
        responses = [self._response(response) for response in sample.responses]
        return {
            "question": question,
            "responses": responses,
            **self._predictions(sample, responses),
            "scores": {pair: [_score(score) for score in scores] for pair, scores in sample.scores.items()},
            "details": self._value(_present(sample.details)),
            "reasons": self._value(_present(sample.reasons)),
            "labels": [
                {
                    "label": label.label,
                    "index": label.sample_index,
                    "passed": label.passed,
                    "score": label.score,
                    "status": label.status,
                    "details": self._value(label.details),
                }
                for label in sample.labels
            ],
        }

    @staticmethod
    def size(record: Mapping[str, Any], question: Mapping[str, Any] | None) -> int:
        """About how many characters the records hold, for filling blocks."""
        return 300 + sum(map(len, texts_in([record, question])))

    def _response(self, response: ResponseView) -> dict[str, Any]:
        record = {
            "text": self._text(response.text),
            "status": response.status,
            "error": self._text(response.error),
            "finish": "length" if response.at_limit else response.finish_reason,
            "reasoning": self._text(response.reasoning),
            "calls": list(map(self._text, response.calls)),
            "transcript": self._chat(response.transcript),
            "prompt_tokens": response.prompt_tokens,
            "completion_tokens": response.completion_tokens,
            "reasoning_tokens": response.reasoning_tokens if response.reasoning else None,
            "seconds": response.seconds,
            "lls": list(response.lls),
            "greedy": list(response.is_greedy),
        }
        return {name: value for name, value in record.items() if value not in (None, [])}

    def _predictions(
        self, sample: SampleView, responses: Sequence[Mapping[str, Any]]
    ) -> dict[str, dict[str, list[Any]]]:
        """Predictions, and where they stand: a span, WHOLE (the prediction is then left out), or null."""
        filters: dict[str, list[Any]] = {}
        spans: dict[str, list[Any]] = {}
        for name, predictions in sample.filters.items():
            texts = [response.text for response in sample.responses] + [None] * len(predictions)
            whole = [p is not None and p == text for p, text in zip(predictions, texts, strict=False)]
            filters[name] = [
                None if all_of_it else self._value(prediction)
                for prediction, all_of_it in zip(predictions, whole, strict=True)
            ]
            spans[name] = [
                WHOLE if all_of_it else self._span(name, prediction, responses, index)
                for index, (prediction, all_of_it) in enumerate(zip(predictions, whole, strict=True))
            ]
        return {"filters": filters, "spans": spans}

    def _span(
        self, name: str, prediction: Any, responses: Sequence[Mapping[str, Any]], index: int
    ) -> tuple[int, int] | None:
        text = responses[index].get("text", "") if index < len(responses) else ""
        span = find_span(text, prediction, self._patterns.get(name))
        return utf16(text, span) if span else None

    def _chat(self, text: str | None) -> str | None:
        """The JSON of a chat with the long texts of its messages shortened."""
        if text is None or self.cap is None or len(text) <= self.cap:
            return text
        chat = self._value(parsed_chat(text))
        return chat if isinstance(chat, str) else json_bytes(chat).decode()

    def _value(self, value: Any) -> Any:
        """A value of JSON with the long texts in it shortened."""
        if self.cap is None:
            return value
        return with_leaves(value, lambda leaf: self._text(leaf) if isinstance(leaf, str) else leaf)

    def _text(self, text: str | None) -> str | None:
        if text is None or self.cap is None or len(text) <= self.cap:
            return text
        self.shortened += 1
        head, tail = text[: self.cap // 3], text[-(self.cap - self.cap // 3) :]
        return f"{head}\n[… {numbers.count(len(text) - self.cap)} characters left out …]\n{tail}"


class SampleIndex:
    """What the list of samples shows and filters by, as columns: small enough to unpack at once."""

    def __init__(self) -> None:
        self._items: list[str] = []
        self._positions: list[int | None] = []
        self._questions: list[int] = []
        self._snippets: list[str] = []
        self._counts: dict[str, list[int]] = {"n": [], "failed": [], "cut": [], "disagree": [], "length": []}
        # By the names that no facet of a config can have otherwise; the page says Model and Prompt.
        self._facets: dict[str, _Codes] = {name: _Codes() for name in OWN_FACETS}
        self._means: defaultdict[str, dict[int, float | None]] = defaultdict(dict)
        self._unscored: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self._nothing: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self._passed: defaultdict[str, dict[int, float | None]] = defaultdict(dict)
        self._label_means: defaultdict[str, dict[int, float | None]] = defaultdict(dict)
        self._label_unscored: defaultdict[str, dict[int, int]] = defaultdict(dict)

    def add(self, sample: SampleView, question: int) -> None:
        """Adds the next sample."""
        row = len(self._items)
        self._items.append(sample.item_id)
        self._positions.append(sample.doc_id)
        self._questions.append(question)
        self._snippets.append(_snippet(sample))
        texts = [response.text or "" for response in sample.responses]
        self._counts["n"].append(len(sample.responses))
        self._counts["failed"].append(sum(response.failed for response in sample.counted))
        self._counts["cut"].append(sum(response.at_limit for response in sample.responses))
        self._counts["disagree"].append(int(any(_varies(scores) for scores in sample.scores.values())))
        self._counts["length"].append(sum(map(len, texts)))
        for name, text in sample.places.items():
            self._facets.setdefault(name, _Codes()).set(row, text)
        for pair, scores in sample.scores.items():
            self._means[pair][row] = mean_of_scored(scores)
        for (kind, name), count in sample.unscored.items():
            (self._unscored if kind == "pair" else self._label_unscored)[name][row] = count
        for name, predictions in sample.filters.items():
            self._nothing[name][row] = sum(prediction is None for prediction in predictions)
        self._add_labels(sample, row)

    def _add_labels(self, sample: SampleView, row: int) -> None:
        by_label: defaultdict[str, list[float | None]] = defaultdict(list)
        for label in sample.labels:
            by_label[label.label].append(None if label.passed is None else float(label.passed))
        for name, passed in by_label.items():
            self._passed[name][row] = mean_of_scored(passed)
        for name, mean in sample.label_means.items():
            self._label_means[name][row] = mean

    @property
    def positions(self) -> frozenset[int]:
        """Positions of the samples' items in the dataset, as far as they are known."""
        return frozenset(position for position in self._positions if position is not None)

    def record(
        self, block_sizes: Sequence[int], shortened: int, places: Mapping[int, str] = MappingProxyType({})
    ) -> dict[str, Any]:
        """All columns, each with one entry a sample; where a sample has no such entry, null.

        ``places``: position in the dataset → where the item stands, for people; the item's id elsewhere.
        """
        rows = range(len(self._items))
        return {
            "blocks": list(block_sizes),
            "shortened": shortened,
            "item": self._items,
            "name": [
                item if position is None else places.get(position, item)
                for item, position in zip(self._items, self._positions, strict=True)
            ],
            "question": self._questions,
            "snippet": self._snippets,
            **self._counts,
            "facets": {
                name: codes.record(len(self._items)) for name, codes in self._facets.items() if codes.values
            },
            "mean": _columns(self._means, rows),
            "unscored": _columns(self._unscored, rows),
            "nothing": _columns(self._nothing, rows),
            "passed": _columns(self._passed, rows),
            "label_mean": _columns(self._label_means, rows),
            "label_unscored": _columns(self._label_unscored, rows),
        }


class _Codes:
    """A column of few distinct texts."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self._codes: dict[int, int] = {}

    def set(self, row: int, text: str) -> None:
        self._codes[row] = self.values.setdefault(text, len(self.values))

    def record(self, n: int) -> dict[str, Any]:
        return {"values": list(self.values), "codes": [self._codes.get(row, -1) for row in range(n)]}


def _columns(cells: Mapping[str, Mapping[int, Any]], rows: range) -> dict[str, list[Any]]:
    return {name: [column.get(row) for row in rows] for name, column in cells.items()}


def _varies(scores: Sequence[float | None]) -> bool:
    scored = [score for score in scores if score is not None]
    return len(scored) > 1 and min(scored) != max(scored)


def _score(score: float | None) -> float | str | None:
    """JSON has no infinity and no NaN; as texts they are not taken for unscored."""
    return score if score is None or math.isfinite(score) else str(score)


def _present(columns: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    return {name: list(values) for name, values in columns.items() if any(values)}


def _snippet(sample: SampleView) -> str:
    """The end of the first response, where answers stand, on one line; what went wrong if there is none."""
    if not sample.responses:
        return ""
    first = sample.responses[0]
    if first.text is None and first.lls and sample.choices:
        best = max(range(len(first.lls)), key=first.lls.__getitem__)
        return sample.choices[best][:SNIPPET] if best < len(sample.choices) else ""
    said = (first.text or "").strip() or "; ".join(first.calls)
    text = " ".join(said[-4 * SNIPPET :].split()) if first.ok else (first.error or first.status)
    return text if len(text) <= SNIPPET else f"…{text[-SNIPPET:]}"
