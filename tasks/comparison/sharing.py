"""Which items of two runs rest on answers that both took from the same reply of a model.

Answers are kept and reused, so that a rerun may be the earlier run once more, and a run with more samples
partly so. Such items say nothing about how far two measurements lie apart. An answer is known by its request
and the moment that it arrived. Where a run's responses are no longer kept its manifest tells: a run that was
sent every answer of its own shares none with those before it; of any other nobody knows, and its items count
as shared.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from metrics.errors import NightjarError
from tasks.store.storage import ArtifactRef, Store

_COLUMNS: Final = ("item_id", "request_key", "timestamp", "status", "response")
Answer = tuple[str, str, str]
"""The request's key, when the answer arrived, and what it says where nothing says when."""


class SharedAnswers:
    """What runs of a store share; the responses of each are read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: dict[tuple[str, str | None, str | None], dict[str, set[Answer]] | None] = {}

    def items(
        self,
        base: Mapping[str, Any],
        candidate: Mapping[str, Any],
        model: str | None,
        prompt: str | None = None,
    ) -> "Shared":
        """What the runs with these manifests share of a model's answers (None: of any model's) to a prompt
        (None: to any)."""
        place = model, prompt
        artifacts = [{entry["digest"] for entry in _responses(run, *place)} for run in (base, candidate)]
        if artifacts[0] & artifacts[1] and artifacts[0] == artifacts[1]:
            return Shared(None)
        if _asked_for_all(candidate, model) and _before(base, candidate, model):
            return Shared(frozenset())
        before, after = (self._answers(run, *place) for run in (base, candidate))
        if before is None or after is None:
            return Shared(None)
        return Shared(frozenset(item for item, own in after.items() if own & before.get(item, set())))

    def _answers(
        self, manifest: Mapping[str, Any], model: str | None, prompt: str | None
    ) -> dict[str, set[Answer]] | None:
        """The answers to each item; None where the responses are no longer there."""
        name = str(manifest.get("run_id")), model, prompt
        if name not in self._read:
            try:
                self._read[name] = self._read_answers(manifest, model, prompt)
            except NightjarError:
                self._read[name] = None
        return self._read[name]

    def _read_answers(
        self, manifest: Mapping[str, Any], model: str | None, prompt: str | None
    ) -> dict[str, set[Answer]] | None:
        entries = list(_responses(manifest, model, prompt))
        found: dict[str, set[Answer]] = {}
        for entry in entries:
            for batch in self._store.batches(ArtifactRef.of(entry), _COLUMNS):
                for item, answer in _rows(batch):
                    found.setdefault(item, set()).add(answer)
        return found if entries else None


class Shared:
    """The ids of items that share an answer; None: all of them, or nobody knows."""

    def __init__(self, items: frozenset[str] | None) -> None:
        self._items = items

    def __contains__(self, item_id: str) -> bool:
        return self._items is None or item_id in self._items


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[str, Answer]]:
    """Item and answer of every response that there is."""
    answered = batch.filter(pc.not_equal(batch.column("status").cast(pa.string()), "infra_error"))
    # Recordings need not say when: there the text tells answers apart.
    texts = pc.if_else(pc.is_valid(answered.column("timestamp")), None, answered.column("response"))
    names = (answered.column(name).to_pylist() for name in ("item_id", "request_key", "timestamp"))
    for item, key, moment, response in zip(*names, texts.to_pylist(), strict=True):
        yield item, (key, moment or "", response or "")


def _responses(
    manifest: Mapping[str, Any], model: str | None, prompt: str | None
) -> Iterator[Mapping[str, Any]]:
    models = (manifest.get("models") or {}) if model is None else (model,)  # judges' replies are no answers
    for entry in (manifest.get("artifacts") or {}).get("infer") or ():
        if entry.get("model_name") in models and prompt in (None, entry.get("prompt_template")):
            yield entry


def _tallies(manifest: Mapping[str, Any], model: str | None) -> list[Mapping[str, Any]]:
    models = manifest.get("models") or {}
    return [tally for name, tally in models.items() if model in (None, name)]


def _asked_for_all(manifest: Mapping[str, Any], model: str | None) -> bool:
    """Whether no answer of the run was there before it."""
    tallies = _tallies(manifest, model)
    return bool(tallies) and all(tally.get("sent") and not tally.get("cached") for tally in tallies)


def _before(base: Mapping[str, Any], candidate: Mapping[str, Any], model: str | None) -> bool:
    """Whether the base can have taken no answer of the candidate: it took none, or ended before."""
    if _asked_for_all(base, model):
        return True
    ended = (base.get("started") or 0.0) + (base.get("wall_seconds") or 0.0)
    return bool(ended <= (candidate.get("started") or 0.0))
