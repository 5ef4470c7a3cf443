"""What an endpoint says of itself when it is asked for its models.

It is kept beside the answers that are asked for after it, as
``answers/<identity>/says/<time>-<digest>.json``, and compared with what the endpoint says before they are
reused. Only facts that stay as long as the model does are taken: servers list clocks, prices and permissions
beside them.
"""

import json
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tasks.store.errors import FileDamaged, StoreError
from tasks.store.keys import digest
from tasks.store.storage import Store

if TYPE_CHECKING:
    from tasks.models.wire import ModelListing

FACTS: Final = (
    "root", "parent", "owned_by", "version", "revision", "sha", "model_sha", "model_dtype", "dtype",
    "quantization", "arch", "architecture", "max_model_len", "max_context_length", "context_length",
    "context_window", "max_total_tokens", "max_input_length", "meta",
)  # fmt: skip
"""Keys of an entry of /v1/models that describe the model, of vLLM, SGLang, llama.cpp, TGI, LM Studio and
hosted ones; an object's keys count one by one."""
HEADERS: Final = (
    "server", "x-powered-by", "openai-version", "x-model-id", "x-model-version", "x-model-revision",
    "x-compute-type",
)  # fmt: skip
Statement = Mapping[str, str]
"""Fact → what is said of it."""


def statement(model: str, listing: "ModelListing") -> Statement:
    """What the endpoint says of itself and of the model.

    >>> from tasks.models.wire import ModelListing
    >>> statement("m", ModelListing({"m": {"created": 9, "max_model_len": 4096}}, {"Server": "vllm"}))
    {'listed': 'yes', 'max_model_len': '4096', 'header server': 'vllm'}
    """
    said = {"listed": "yes" if model in listing.entries else "no"} if listing.entries else {}
    entry = listing.entries.get(model, {})
    for fact in FACTS:
        value = entry.get(fact)
        parts = (
            {f"{fact}.{name}": part for name, part in value.items()}
            if isinstance(value, dict)
            else {fact: value}
        )
        said |= {name: _text(part) for name, part in parts.items() if part is not None}
    given = {name.lower(): text for name, text in listing.headers.items()}
    return said | {f"header {name}": given[name] for name in HEADERS if name in given}


def contradictions(before: Statement, now: Statement) -> Iterator[str]:
    """What is said otherwise now than before, a sentence each.

    >>> list(contradictions({"max_model_len": "4096"}, {"max_model_len": "8192"}))
    ['max_model_len was 4096 and is 8192']
    """
    for fact in (*before, *(name for name in now if name not in before)):
        if before.get(fact) != now.get(fact):
            yield f"{fact} was {before.get(fact, 'not said')} and is {now.get(fact, 'not said')}"


def keep_statement(store: Store, folder: str, said: Statement, now: float | None = None) -> None:
    """Keeps what the endpoint says from now on (seconds since 1970), if that is not what it said last.

    Serves doubts alone: where the store can't be written, the run goes on without.
    """
    kept = kept_statements(store, folder)
    if said and (not kept or kept[-1][1] != said):
        since = time.time() if now is None else now
        name = f"{folder}/says/{int(since * 1000):013d}-{digest(said)[:12]}.json"
        with suppress(StoreError):
            store.put_document(name, json.dumps({"since": since, "says": dict(said)}).encode())


def kept_statements(store: Store, folder: str) -> list[tuple[float, Statement]]:
    """Since when (seconds since 1970) the endpoint said what, oldest first; without what can't be
    read."""
    found: list[tuple[float, Statement]] = []
    with suppress(StoreError):
        for entry in store.entries(f"{folder}/says"):
            with suppress(FileDamaged, ValueError, KeyError, TypeError, AttributeError):
                document = json.loads(store.document(entry.name))
                found.append((float(document["since"]), dict(document["says"].items())))
    return found


def said_at(kept: list[tuple[float, Statement]], times: Iterable[float]) -> list[Statement]:
    """What the endpoint said at some moments, each statement once; nothing for a moment before the first."""
    since = [moment for moment, _ in kept]
    places = {bisect_right(since, moment) - 1 for moment in times}
    return [kept[place][1] for place in sorted(places) if place >= 0]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
