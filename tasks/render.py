"""Stage "render": items and a prompt template become requests."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from tasks.benchmarks.config import BenchmarkFields
from tasks.benchmarks.open import open_benchmark
from tasks.caching import Workspace, artifact_task
from tasks.datasets.item import Rendered
from tasks.messages.media import keep_media
from tasks.rows.items import read_items, request_batches
from tasks.store.keys import Step, Unkeyed
from tasks.store.schemas import REQUESTS
from tasks.store.storage import ArtifactRef, Store


class RenderSetup(Unkeyed):
    """The benchmark and the name of one of its prompt templates."""

    benchmark: BenchmarkFields
    prompt: str


@artifact_task("render", REQUESTS, where="anywhere")
def render(
    step: Step[RenderSetup], items: ArtifactRef, start: int, stop: int, workspace: Workspace
) -> Iterator[pa.RecordBatch]:
    """Renders the items of one partition, rows ``start`` to ``stop`` (excluded) of the items artifact."""
    benchmark = open_benchmark(step.setup.benchmark)
    store = workspace.open()
    part = read_items(store.batches(items, rows=(start, stop)))
    yield from request_batches(step.setup.prompt, _kept(benchmark.render(step.setup.prompt, part), store))


def _kept(rendered: Iterable[Rendered], store: Store) -> Iterator[Rendered]:
    """The same, the media of each put into the store."""
    for entry in rendered:
        for media in entry.media:
            keep_media(store, media)
        yield entry
