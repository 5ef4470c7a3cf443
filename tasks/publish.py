"""Stage "publish": what a run made becomes files that people and programs read, and a page in the Prefect
UI."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from prefect import get_run_logger, task
from prefect.artifacts import create_link_artifact, create_table_artifact
from prefect.assets import Asset, AssetProperties, materialize

from metrics.errors import NightjarError, printable, printable_values
from tasks.arena import read_ratings
from tasks.caching import Workspace, is_transient
from tasks.comparison.matching import read_groups
from tasks.comparison.runs import ComparedRun
from tasks.comparison.trends import LearningCurve, known_of_models, learning_curves, ordering_facet
from tasks.history.layout import record_manifest, record_rows
from tasks.inspected import read_inspected
from tasks.judge import judged_parts
from tasks.messages.markdown import as_cells, as_text
from tasks.messages.media import kept_media
from tasks.patience import if_possible
from tasks.processes.workers import workers
from tasks.publishers import ExportForm, FinishedRun, PublishConfig
from tasks.reduction.aggregate import aggregate_pair
from tasks.reduction.facets import facet_cell
from tasks.reduction.verdict_metrics import METRIC_ROWS
from tasks.reporting.exports import (
    AnswerPart,
    RunInfo,
    SamplePart,
    write_evaluation_results,
    write_items_table,
    write_metrics,
    write_responses,
    write_results,
    write_results_table,
    write_samples,
)
from tasks.reporting.inspect_log import LoggedRun, write_inspect_log
from tasks.reporting.numbers import rounded
from tasks.reporting.overview import write_index
from tasks.reporting.report import FirstPass, write_report
from tasks.reporting.view import CellArtifacts, ResultRow, RunView, facet_names, result_rows, sample_views
from tasks.rows.parts import FailedPart, PairIdentity, Part
from tasks.store.home import plain_name, ui_key, write_json
from tasks.store.outputs import (
    EVALUATION_RESULTS,
    ITEMS_TABLE,
    MANIFEST,
    METRICS,
    REPORT,
    RESPONSES,
    RESULTS_JSON,
    RESULTS_TABLE,
    published_files,
    samples_file,
)
from tasks.store.schemas import CELL_FACETS, RESULTS
from tasks.store.storage import ArtifactRef, Store
from tasks.store.thresholds import Threshold
from tasks.verdicts.config import EvaluationMethodConfig
from tasks.verdicts.rows import method_labels

SHOWN = [
    "filter",
    "metric",
    "reduction",
    "label",
    "value",
    "stderr",
    "ci_low",
    "ci_high",
    "n_items",
    "n_unscored",
    "n_cut_off",
    "status",
    "error",
]
TABLE_ROWS = 200
"""Rows of the table in the UI, at most: the whole is in results.parquet."""
AT_ONCE = Threshold("requests_of_one_pass", 4_096)
"""Items that the report's first pass goes through in one go, unless a cell has more; larger runs are gone
through in as many processes as there are, so that their number decides nothing."""


ALSO_IN_MANIFEST: Final = ("ratings", "inspect")
"""Keys of the manifest that results.json has, too: numbers that are of no pair."""


@dataclass(frozen=True)
class LostPair:
    """A pair without numbers: where it failed, and why. ``over_results``: it is a metric over evaluation
    results."""

    identity: PairIdentity
    failed: tuple[FailedPart, ...]
    facets: tuple[str, ...]
    over_results: bool = False


@dataclass(frozen=True)
class PairNumbers:
    """A pair's results by its facets, and those ``overall``, by model and prompt alone; None: it has none."""

    own: ArtifactRef | None
    overall: ArtifactRef | None = None


@dataclass(frozen=True)
class Publication:
    """Everything that a run has to show."""

    run: RunInfo
    manifest: dict[str, Any]
    output: str
    facets: tuple[str, ...]
    methods: tuple[EvaluationMethodConfig, ...]
    cells: tuple[CellArtifacts, ...]
    results: tuple[PairNumbers, ...]
    """Numbers of pairs."""
    counted: tuple[ArtifactRef, ...]
    """Numbers over the results of evaluation methods."""
    items: tuple[ArtifactRef, ...]
    lost: tuple[LostPair, ...]
    ratings: tuple[ArtifactRef, ...] = ()
    inspected: tuple[ArtifactRef, ...] = ()
    """Strengths of models that were compared, by prompt and filter."""
    index: str | None = None
    """The folder of results whose page of all runs is renewed; None: it has none of this store."""
    kept: tuple[str, ...] = ()
    """Files of the output folder that stay as they are, because the run reads them."""


@dataclass(frozen=True)
class Published:
    """The numbers as they were written, and where the report is."""

    results: pa.Table
    report: str
    ok: bool
    """No number is missing, and something can be made of them."""
    fatal: tuple[str, ...] = ()
    """Findings that say that nothing can be made of the numbers."""


def is_lacking(manifest: Mapping[str, Any], results: pa.Table) -> bool:
    """Whether something that a published run was to compute is missing, so that a rerun may bring it: not
    where findings alone fail the run."""
    return bool(manifest["over_budget"]) or "failed" in results.column("status").to_pylist()


def run_assets(run_id: str, benchmark: str, output: str) -> list[Asset]:
    """A run's results and report as Prefect names them: the same from night to night, so that each has a
    history of the runs that made it."""
    files = {"results": RESULTS_TABLE, "report": REPORT}
    return [
        Asset(
            key=f"nightjar://{plain_name(benchmark)}/{name}",
            properties=AssetProperties(
                name=f"{benchmark} {name}",
                description=f"{Path(output) / file} of run {run_id}",
                url=(Path(output) / file).absolute().as_uri(),
            ),
        )
        for name, file in files.items()
    ]


@materialize(
    "nightjar://run/results",
    name="publish",
    task_run_name="publish",
    persist_result=False,
    retries=1,  # every file is written whole, so that a second time changes nothing but what is missing
    retry_delay_seconds=1,
    retry_condition_fn=is_transient,
)
def publish(publication: Publication, workspace: Workspace) -> Published:
    """Writes the run's folder, adds the run to the history, and shows it on the run's page."""
    store, folder = workspace.open(), Path(publication.output)
    besides = {
        "ratings": read_ratings(store, publication.ratings),
        "inspect": read_inspected(store, publication.inspected),
    }
    found = {name: value for name, value in besides.items() if value}
    if publication.methods:
        labels = method_labels(list(_judged(store, publication)))
        cells = tuple(replace(cell, labels=labels) for cell in publication.cells)
        publication = replace(publication, cells=cells)
    if found:
        publication = replace(publication, manifest={**publication.manifest, **found})
    results = _results(publication, store)
    shown = replace(publication, manifest={}, lost=())
    _remove_former(publication, folder)
    # The report's second pass waits for the first and is made here: it has the longest export beside it, the
    # others lie before both, so that no core is idle at the end.
    exports = [
        workers().offer(export_responses, shown, workspace, folder),
        workers().offer(record_all_rows, shown, workspace, results),
    ]
    first = _first_pass(publication, workspace, results)
    exports.append(workers().offer(export_samples, shown, workspace, folder))
    _write_tables(publication, store, folder, results)
    samples = partial(sample_views, store, publication.cells, publication.facets)
    view = RunView(
        manifest=publication.manifest,
        results=results,
        samples=samples,
        picked=samples,
        media=partial(kept_media, store),
    )
    written = write_report(
        view, folder / REPORT, learning=_learning(publication, results, folder), first=first()
    )
    for exported in exports:
        exported.result()
    fatal = tuple(finding.message for finding in written.diagnostics if finding.severity == "error")
    ok = not fatal and not is_lacking(publication.manifest, results)
    manifest = publication.manifest | {
        "status": "ok" if ok else "failed",
        "diagnostics": [asdict(finding) for finding in written.diagnostics],
    }
    write_json(folder / MANIFEST, manifest)
    record_manifest(store, manifest)
    if publication.index is not None:
        _renew_index(store, Path(publication.index))
    _show(publication, results, written.path)
    return Published(results=results, report=str(written.path), ok=ok, fatal=fatal)


@task(
    name="publish to",
    task_run_name="publish to {config.name}",
    persist_result=False,
    retries=1,  # a destination replaces what a first time left
    retry_delay_seconds=1,
)
def publish_to(config: PublishConfig, folder: str) -> Sequence[str]:
    """Sends the numbers of a published run to one destination; returns where they are found."""
    config.publisher.require_client()  # the run may have been planned on another machine
    places = config.publisher.publish(FinishedRun(Path(folder)))
    for place in places:
        get_run_logger().info("published to %s: %s", config.name, place)
    return places


@task(
    name="export",
    task_run_name="export {form}",
    persist_result=False,
    retries=1,  # every file is written whole
    retry_delay_seconds=1,
    retry_condition_fn=is_transient,
)
def export(
    form: ExportForm, publication: Publication, results: pa.Table, workspace: Workspace
) -> Sequence[str]:
    """Writes a published run's samples in another program's form; returns the files."""
    writers = {"inspect": inspect_logs}
    return [str(path) for path in writers[form](publication, results, workspace.open())]


def inspect_logs(publication: Publication, results: pa.Table, store: Store) -> Iterator[Path]:
    """A log of Inspect for each model and prompt."""
    run = LoggedRun(publication.manifest, results.to_pylist(), publication.run.prompts)
    by_model: dict[tuple[str, str], list[CellArtifacts]] = {}
    for cell in publication.cells:
        by_model.setdefault((cell.origin.model_name, cell.origin.prompt_template), []).append(cell)
    for (model, prompt), cells in by_model.items():
        samples = sample_views(store, cells, publication.facets)
        yield write_inspect_log(Path(publication.output), run, model, prompt, samples)


def _remove_former(publication: Publication, folder: Path) -> None:
    """Removes what a former run left in the folder: beside the files of one that fails before its last is
    written, it would be taken for this run's."""
    for file in published_files(folder, publication.run.benchmark):
        if file.name not in publication.kept:
            file.unlink(missing_ok=True)


def _first_pass(publication: Publication, workspace: Workspace, results: pa.Table) -> Callable[[], FirstPass]:
    """Begins the report's first pass, some cells at a time, and gives what waits for it."""
    config = {"config": publication.manifest["config"]}
    passes = [
        workers().offer(pass_over, cells, publication.facets, config, results, workspace)
        for cells in _at_once(publication.cells)
    ]

    def merged() -> FirstPass:
        first, *others = passes
        whole: FirstPass = first.result()
        for other in others:
            whole.merge(other.result())
        return whole

    return merged


def _at_once(cells: Iterable[CellArtifacts]) -> Iterator[list[CellArtifacts]]:
    """The cells in their order, as many together as one pass goes through."""
    together: list[CellArtifacts] = []
    for cell in cells:
        if together and sum(one.requests.rows for one in together) + cell.requests.rows > AT_ONCE:
            yield together
            together = []
        together.append(cell)
    yield together


def pass_over(
    cells: Sequence[CellArtifacts],
    facets: tuple[str, ...],
    manifest: Mapping[str, Any],
    results: pa.Table,
    workspace: Workspace,
) -> FirstPass:
    """The report's first pass over some cells; another process may make it."""
    samples = partial(sample_views, workspace.open(), cells, facets)
    return FirstPass.over(RunView(manifest=manifest, results=results, samples=samples))


def _learning(publication: Publication, results: pa.Table, folder: Path) -> Sequence[LearningCurve]:
    """The curves of a run over checkpoints; that they are not available is no reason for a run to fail."""
    known = known_of_models(publication.manifest)
    if ordering_facet(known) is None:
        return ()
    items = folder / ITEMS_TABLE
    try:
        run = ComparedRun(publication.run.run_id, read_groups(items, str(items)), tuple(results.to_pylist()))
        return learning_curves(run, known)
    except NightjarError as error:
        get_run_logger().warning("no learning curves: %s", error)
        return ()


def _renew_index(store: Store, folder: Path) -> None:
    """Writes the page of all runs again; that it can't be is no reason for a run to fail."""
    try:
        write_index(store, folder)
    except (NightjarError, OSError) as error:
        get_run_logger().warning("%s is not renewed: %s", folder / "index.html", error)


def _results(publication: Publication, store: Store) -> pa.Table:
    """All numbers of the run under its id, those of pairs that have none as failed rows."""
    tables = [table for numbers in publication.results for table in _pair_tables(publication, numbers, store)]
    tables += [store.table(ref, RESULTS.names) for ref in publication.counted]
    for pair in publication.lost:
        rows = aggregate_pair(pair.identity, [], _no_statistics(), pair.failed, pair.facets)
        tables += [pa.Table.from_batches([batch]) for batch in rows]
    table = pa.concat_tables(tables) if tables else RESULTS.empty_table()
    ids = pa.array([publication.run.run_id] * table.num_rows, pa.string())
    return table.set_column(0, RESULTS.field("run_id"), ids).combine_chunks()


def _pair_tables(publication: Publication, numbers: PairNumbers, store: Store) -> Iterator[pa.Table]:
    """A pair's rows, those over all facets first.

    They have no facets; model and prompt are in columns of their own, as in other rows, where the facets name
    them or there are several.
    """
    if numbers.overall is not None:
        table = store.table(numbers.overall)
        run = publication.run
        told = {"model_name": len(run.models) > 1, "prompt_template": len(run.prompts) > 1}
        empty = [name for name, several in told.items() if name not in publication.facets and not several]
        columns = {"facets": pa.array(["{}"] * table.num_rows), **dict.fromkeys(empty)}
        for name, column in columns.items():
            place, field = table.schema.get_field_index(name), table.schema.field(name)
            table = table.set_column(
                place, field, pa.nulls(table.num_rows, field.type) if column is None else column
            )
        yield table
    if numbers.own is not None:
        yield store.table(numbers.own)


def _no_statistics() -> Any:
    from metrics.config import StatisticsConfig

    return StatisticsConfig(bootstrap_iters=0)


def _write_tables(publication: Publication, store: Store, folder: Path, results: pa.Table) -> None:
    run = publication.run
    write_results_table(folder / RESULTS_TABLE, results)
    write_items_table(folder / ITEMS_TABLE, _batches(store, publication.items), publication.facets)
    besides: dict[str, Any] = {
        name: publication.manifest[name] for name in ALSO_IN_MANIFEST if name in publication.manifest
    }
    write_results(folder / RESULTS_JSON, results.to_batches(), run, besides)
    counted = _of_metrics(results, _counted_names(publication, store))
    lost = _of_metrics(results, [lost.identity.metric.name for lost in publication.lost if lost.over_results])
    failed = results.filter(lost)
    failed = failed.append_column(METRIC_ROWS.field("values_json"), pa.nulls(len(failed), pa.string()))
    pairs = results.filter(pc.invert(pc.or_(counted, lost)))
    rows = (*pairs.to_batches(), *_batches(store, publication.counted), *failed.to_batches())
    write_metrics(folder / METRICS, rows)


def _of_metrics(results: pa.Table, names: Sequence[str]) -> pa.ChunkedArray:
    return pc.is_in(results.column("metric"), pa.array(names, pa.string()))


def _counted_names(publication: Publication, store: Store) -> list[str]:
    """Metrics over evaluation results that have numbers: their lines hold the metric's own values, too."""
    return [
        name
        for ref in publication.counted
        for name in store.table(ref, ["metric"]).column("metric").unique().to_pylist()
    ]


def export_responses(publication: Publication, workspace: Workspace, folder: Path) -> None:
    """Writes the files of answers and of what evaluation methods said of them; another process may do it."""
    store = workspace.open()
    if RESPONSES not in publication.kept:
        write_responses(folder / RESPONSES, [_answers(store, cell) for cell in publication.cells])
    if publication.methods:
        judged = judged_parts(list(_judged(store, publication)), publication.methods)
        write_evaluation_results(folder / EVALUATION_RESULTS, judged)


def export_samples(publication: Publication, workspace: Workspace, folder: Path) -> None:
    """Writes the log of samples, filter after filter as the harness does, however the items were cut; another
    process may do it."""
    store = workspace.open()
    places = [list(cells) for _, cells in groupby(publication.cells, key=attrgetter("origin"))]
    parts = [
        SamplePart(
            answers=_answers(store, cell),
            filter=name,
            predictions=partial(store.batches, cell.predictions[name]),
            statistics=_statistics_of(store, cell, name),
        )
        for cells in places
        for name in dict.fromkeys(name for cell in cells for name in cell.predictions)
        for cell in cells
        if name in cell.predictions
    ]
    write_samples(folder / samples_file(publication.run.benchmark), parts, publication.run)


def record_all_rows(publication: Publication, workspace: Workspace, results: pa.Table) -> None:
    """Writes the run's rows for the history, which it is no part of yet; another process may do it."""
    store = workspace.open()
    record_rows(store, publication.run.run_id, [results], _batches(store, publication.items))


def _judged(store: Store, publication: Publication) -> Iterator[Part]:
    for cell in publication.cells:
        for method, ref in cell.verdicts.items():
            answers = _answers(store, cell)
            yield Part(cell.origin, partial(store.batches, ref), answers.requests, answers.responses, method)


def _answers(store: Store, cell: CellArtifacts) -> AnswerPart:
    return AnswerPart(
        cell.origin, partial(store.batches, cell.requests), partial(store.batches, cell.responses)
    )


def _statistics_of(store: Store, cell: CellArtifacts, filter_name: str) -> Mapping[str, Any]:
    named = ((name.rpartition(","), ref) for name, ref in cell.statistics.items())
    return {metric: partial(store.batches, ref) for (metric, _, own), ref in named if own == filter_name}


def _batches(store: Store, refs: tuple[ArtifactRef, ...]) -> Iterator[pa.RecordBatch]:
    for ref in refs:
        yield from store.batches(ref)


def _show(publication: Publication, results: pa.Table, report: Path) -> None:
    """A table of the numbers and a link to the report on the run's page; a stable key gives each a
    history."""
    key = ui_key(publication.run.benchmark)
    shown = _shown(result_rows(results)[:TABLE_ROWS])
    # The server may be away: what is on disk counts, and the page is worth waiting for but no reason to fail.
    said = as_text(printable(f"Results of {publication.run.benchmark}, run {publication.run.run_id}"))
    shown = as_cells(printable_values(shown))
    if_possible(lambda: create_table_artifact(shown, key=f"{key}-results", description=said))
    link, name = report.resolve().as_uri(), f"{key}-report"
    if_possible(lambda: create_link_artifact(link, link_text="report.html", key=name, description=said))


def _shown(rows: Sequence[ResultRow]) -> list[dict[str, Any]]:
    """The rows with a column for each facet beside model and prompt; of a row over all its values: all."""
    columns = {name: f"facet.{name}" if name in SHOWN else name for name in facet_names(rows)}
    return [
        {name: getattr(row, name) for name in CELL_FACETS}
        | {column: facet_cell(row.other_facets, name) for name, column in columns.items()}
        | rounded({name: getattr(row, name) for name in SHOWN})
        for row in rows
    ]
