"""How people find an item: where it stands in its dataset, and how its own text begins.

An item without an id of its own goes by a digest, which tells nobody anything. Its position and its text
are read from the samples that a run left in its folder, its line from the dataset's file if that is there.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from metrics.json_values import texts_in
from tasks.comparison.runs import ComparedRun
from tasks.datasets.config import TextForm
from tasks.datasets.items import DERIVED_ID_DIGITS, row_places
from tasks.store.home import named_path
from tasks.store.outputs import samples_file

TEXT_LENGTH: Final = 160
"""Characters of an item's text that name it, at most."""
_ID = re.compile(rb'^\{"doc_id":\d+,"item_id":"([0-9a-f-]+)"')


@dataclass(frozen=True)
class ItemName:
    """Where an item stands ("questions.csv:7", or "item 6" where the dataset is no file), and how its text
    begins."""

    place: str
    text: str


def unknown(item_id: str) -> ItemName:
    """The name of an item that no run has kept samples of."""
    return ItemName(f"item {item_id} (its run has no samples any more)", "")


def places_of(positions: Collection[int], manifest: Mapping[str, Any]) -> dict[int, str]:
    """Position in the dataset → where the item stands in its file ("questions.jsonl:7"); nothing where the
    dataset is no file, or is not there any more."""
    config = manifest.get("config")
    dataset = config.get("dataset") if isinstance(config, Mapping) else None
    if not isinstance(config, Mapping) or not isinstance(dataset, Mapping) or not dataset.get("path"):
        return {}
    form = TextForm(dataset.get("encoding"), dataset.get("delimiter"))
    return row_places(named_path(str(config.get("base_dir") or "."), str(dataset["path"])), positions, form)


def is_derived(item_id: str, item_digest: str) -> bool:
    """Whether an item's id is made of its content; a number is added to that of a second equal item.

    >>> is_derived("q7", "q7"), is_derived(16 * "a" + "-2", 64 * "a")
    (False, True)
    """
    own = item_id.partition("-")[0]
    return len(own) == DERIVED_ID_DIGITS and item_digest.startswith(own)


def item_names(wanted: Mapping[str, set[str]], runs: Collection[ComparedRun]) -> dict[str, ItemName]:
    """Id → name of these items, given as ids by benchmark, as far as the runs' folders tell it."""
    found: dict[str, ItemName] = {}
    for run in runs:
        for folder, manifest in _folders(run):
            for benchmark, ids in wanted.items():
                if missing := ids - found.keys():
                    lines = {
                        line["item_id"]: line for line in _lines(folder / samples_file(benchmark), missing)
                    }
                    places = places_of({line["doc_id"] for line in lines.values()}, manifest)
                    for item_id, line in lines.items():
                        place = places.get(line["doc_id"], f"item {line['doc_id'] + 1}")
                        found[item_id] = ItemName(place, input_of(line))
    return found


def _folders(run: ComparedRun) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Where the run's samples may be, beside the manifest of each place."""
    if Path(run.name).is_dir():
        yield Path(run.name), run.manifest
    for manifest in run.manifests:
        if manifest.get("output"):
            yield Path(str(manifest["output"])), manifest


def _lines(path: Path, ids: set[str]) -> Iterator[Mapping[str, Any]]:
    """A line of the file for each of the items; it is read no further than the last of them."""
    missing = set(ids)
    try:
        with path.open("rb") as file:
            for text in file:
                own = _ID.match(text)
                if own is not None and own[1].decode() in missing:
                    missing.discard(own[1].decode())
                    yield orjson.loads(text)
                if not missing:
                    return
    except (OSError, ValueError):  # the names are a help: numbers do not depend on them
        return


def input_of(line: Mapping[str, Any]) -> str:
    """How the item's own text begins, on one line: the longest of its fields that stands in what was asked,
    since instructions and examples are the same for all.

    >>> input_of({"doc": {"q": "How many eggs?", "topic": "sums"}, "arguments": {"a": "Q: How many eggs?"}})
    'How many eggs?'
    """
    asked = [text for text in texts_in(line.get("arguments")) if text]
    escaped = [json.dumps(text, ensure_ascii=False)[1:-1] for text in texts_in(line.get("doc"))]
    own = [
        text
        for text, inside in zip(texts_in(line.get("doc")), escaped, strict=True)
        if text.strip() and any(text in whole or inside in whole for whole in asked)
    ]
    said = " ".join(max([*own, ""], key=len).split()) or " ".join(" ".join(asked).split())
    return said if len(said) <= TEXT_LENGTH else f"{said[: TEXT_LENGTH - 1]}…"
