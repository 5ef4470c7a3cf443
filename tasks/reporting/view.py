"""A run as people look at it: numbers, provenance, and samples that are read one after another.

The report, the comparison of two runs and the diagnostics all read these records and nothing else, so that
they know neither the store nor Prefect::

    RunView ─ manifest, results ─ samples() ─► SampleView ─ ResponseView   (one a repeat)
                                                          └ LabelView      (one an evaluation method's row)

``RunView.samples`` is a function and not a list: every call starts a new pass over the artifacts, so that a
run of a million samples is never in memory at once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

ResponseStatus = Literal["ok", "model_error", "infra_error"]
Extractor = Callable[[list[list[Any]], list[Mapping[str, Any]]], list[list[Any]]]


@dataclass(frozen=True)
class ResponseView:
    """One response, or what came instead of it.

    ``text`` is None unless ``status`` is "ok" and text was asked for. ``error`` says in words why a request
    failed. ``lls`` and ``is_greedy`` stand beside ``SampleView.choices``: one log-likelihood (natural
    logarithm) a choice. Tokens are as the endpoint counted them, ``seconds`` the time of the attempt that
    succeeded; None: not reported.
    """

    text: str | None
    status: ResponseStatus = "ok"
    error: str | None = None
    finish_reason: str | None = None
    reasoning: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    seconds: float | None = None
    lls: Sequence[float] = ()
    is_greedy: Sequence[bool] = ()

    @property
    def ok(self) -> bool:
        """Did the request succeed?"""
        return self.status == "ok"


@dataclass(frozen=True)
class LabelView:
    """What an evaluation method said about one response under one label.

    ``score`` is None and ``status`` not "ok" where the method could not judge; ``details`` holds the method's
    own words (a judge's explanation, what was expected and what was found).
    """

    label: str
    sample_index: int
    passed: bool | None = None
    score: float | None = None
    status: str = "ok"
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SampleView:
    """One item asked of one model with one prompt template, with everything that came of it.

    ``prompt`` is text, or the JSON text of a list of chat messages where ``chat``. ``responses`` are in order
    of the sample index. The mappings hold one entry a repeat, in the same order; a filter that keeps fewer
    repeats (take_first) has fewer. In ``filters`` (filter name → predictions) None says that the filter found
    nothing. In ``scores``, ``details`` and ``reasons`` the key is ``"metric,filter"``; a score of None is
    *unscored*, and ``reasons`` says why although the request succeeded; NaN: the metric has no number for one
    sample. ``choices`` and ``gold`` (indices of
    the right ones) belong to log-likelihood benchmarks. ``facets`` holds what results are grouped by beside
    model and prompt (``item.subject`` …).
    """

    item_id: str
    model_name: str
    prompt_template: str
    prompt: str
    references: Sequence[Any] = ()
    responses: Sequence[ResponseView] = ()
    filters: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    scores: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    details: Mapping[str, Sequence[Mapping[str, Any] | None]] = field(default_factory=dict)
    reasons: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    facets: Mapping[str, Any] = field(default_factory=dict)
    labels: Sequence[LabelView] = ()
    chat: bool = False
    choices: Sequence[str] = ()
    gold: Sequence[int] = ()
    item_digest: str | None = None

    @property
    def failed(self) -> bool:
        """Did a request fail, or is a response unscored under any metric or label?"""
        return (
            any(not response.ok for response in self.responses)
            or any(score is None for scores in self.scores.values() for score in scores)
            or any(label.status != "ok" for label in self.labels)
        )


@dataclass(frozen=True)
class RunView:
    """One run: provenance, numbers and samples.

    ``manifest`` is the content of ``manifest.json``; ``results`` has the RESULTS schema
    (``tasks/store/schemas.py``), failed pairs included; each call of ``samples`` gives a new pass over all
    samples, in the same order each time. ``extractors`` (filter name → the pipeline's ``apply``) lets the
    diagnostics run a filter again; without one, only filters that are a single regular expression are looked
    into.
    """

    manifest: Mapping[str, Any]
    results: pa.Table
    samples: Callable[[], Iterator[SampleView]]
    extractors: Mapping[str, Extractor] = field(default_factory=dict)
