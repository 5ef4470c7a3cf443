"""``python -m flows.suite SUITE.yaml``: refuses what can't work, runs the night, shows how it ended."""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.command_line import FAILED, UNDECIDED, App, examples, print_json, warn
from metrics.errors import ConfigError, NightjarError
from tasks.usercode.load import trust_what_is_named

logger = logging.getLogger(__name__)
WATCH_SECONDS = 30.0
"""Between two looks for new checkpoints."""

app = App()


@app.command(
    epilog=examples(
        "python -m flows.suite deployments/suites/nightly.yaml",
        "python -m flows.suite deployments/suites/nightly.yaml --limit 5",
    )
)
def suite_command(
    suite: Annotated[Path, typer.Argument(help="YAML file: benchmarks, models, baseline, gate")],
    limit: Annotated[int | None, typer.Option(min=1, help="only the first items of every benchmark")] = None,
    output: Annotated[Path | None, typer.Option(metavar="PATH", help="folder of the night's files")] = None,
    store: Annotated[str | None, typer.Option(help="URI of the artifact store")] = None,
    baseline: Annotated[str | None, typer.Option(help="last-passed, last, rolling or a run's id")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="evaluate checkpoints (new_only) as they appear, until Ctrl-C")
    ] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="run code of folders that others can write to, from now on")
    ] = False,
) -> None:
    """Evaluates many benchmarks on many models, and compares the night with its baseline."""
    from flows.suite.plan import SuiteOptions, check_margins, check_suite, load_suite

    trust_what_is_named(trust)
    options = SuiteOptions(
        limit=limit, output=str(output) if output else None, store=store, baseline=baseline
    )
    loaded = load_suite(suite)
    if watch:
        raise typer.Exit(_watch(loaded, options, lambda chosen: _run(suite, chosen, as_json)))
    planned = check_suite(loaded, options)
    for sentence in check_margins(planned):
        warn(sentence)
    raise typer.Exit(_in_its_night(planned, options, lambda chosen: _run(suite, chosen, as_json)))


def _watch(loaded: Any, options: Any, run: Callable[[Any], tuple[int, bool]]) -> int:
    """Runs the suite on the checkpoints that are new, and whole: their files are as they were one look
    before. Ends by Ctrl-C or SIGTERM only: what can't be read now, such as a file that is being saved, is
    read again at the next look. Raises ConfigError where nothing could ever be new."""
    from flows.suite.plan import check_suite, plan_night, watched_models

    check_suite(loaded, options)
    if not watched_models(loaded):
        raise ConfigError("--watch needs a model with checkpoints: {glob: …, new_only: true}")
    before: dict[str, _Files] = {}
    tried: dict[str, _Files] = {}  # what failed is tried again once its files are others
    said = None
    while True:
        there: dict[str, _Files] = {}
        try:
            planned = plan_night(loaded, options, "watch")
            there = {entry.name: _files(entry) for entry in planned.evaluations}
            due = {
                name: files
                for name, files in there.items()
                if files and files == before.get(name) and files != tried.get(name)
            }
            if due:
                # One that is being written, or failed before, waits; what is no checkpoint is in every night.
                others = (name for name in there if not there[name])
                _in_its_night(planned, options.model_copy(update={"only": (*due, *others)}), run)
                tried |= due
            said = None
        except (NightjarError, OSError) as error:  # a trainer removes checkpoints, an editor saves the suite
            if str(error) != said:
                logger.warning("checkpoints could not be evaluated; looking again: %s", error)
            said = str(error)
        before = there
        time.sleep(WATCH_SECONDS)


_Files = list[tuple[str, int, int]]
"""Files with their sizes and times."""


def _files(planned: Any) -> _Files:
    """The files of the weights that an evaluation would serve."""
    models = planned.config.models if planned.config is not None else ()
    paths = [Path(path) for model in models for path in (model.path, model.peft) if path is not None]
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
    found = []
    for file in files:
        with suppress(FileNotFoundError):  # a trainer renames what it has written
            state = file.stat()
            found.append((str(file), state.st_size, state.st_mtime_ns))
    return found


def _in_its_night(planned: Any, options: Any, run: Callable[[Any], tuple[int, bool]]) -> int:
    """Runs the suite; where it asks again, in the night that an earlier command left unfinished, if any."""
    from tasks.history.prune import begin_night, continued_night, end_night
    from tasks.store.storage import Store

    configs = [entry.config for entry in planned.evaluations if entry.config is not None]
    if not any(config.answers == "fresh" for config in configs):
        return run(options)[0]
    store, named = Store(planned.store), planned.suite.model_dump(mode="json")
    night = continued_night(store, named)
    begin_night(store, named, night)
    code, is_whole = run(options.model_copy(update={"night": night}))
    if is_whole:
        end_night(store, named)
    return code


def _run(suite: Path, options: Any, as_json: bool) -> tuple[int, bool]:
    """Runs the suite's flow and shows how it ended; returns the exit code, and whether nothing is missing."""
    from prefect.client.schemas.objects import State

    from flows.server import serving
    from flows.suite.flow import run_suite
    from tasks.history.nights import NightEvaluation
    from tasks.usercode.surroundings import kept_streams

    with serving() as ui, kept_streams():
        state: State[Any] = asyncio.run(run_suite(str(suite.resolve()), options, return_state=True))  # type: ignore[arg-type]
    document = _document(suite, options, str(state.state_details.flow_run_id))
    document |= {
        "status": state.name,
        "flow_run_url": f"{ui}/runs/flow-run/{state.state_details.flow_run_id}",
    }
    if as_json:
        print_json({name: value for name, value in document.items() if name != "store"})
    else:
        from flows.server import link

        show_night(document, state.message)
        page = Path(str(document.get("output"))) / "suite.html"
        files = f"page:    {page}" if page.is_file() else f"files:   {document.get('output')}"
        print(f"\n{files}\nPrefect: {link(document['flow_run_url'])}")
    evaluations = [NightEvaluation.model_validate(entry) for entry in document.get("evaluations", ())]
    is_whole = bool(evaluations) and not any(entry.lacks for entry in evaluations)
    is_complete = bool(evaluations) and all(entry.ok for entry in evaluations)
    if is_complete and document.get("verdict") == "inconclusive":
        return UNDECIDED, True
    return 0 if state.is_completed() else FAILED, is_whole


def show_night(document: dict[str, Any], message: str | None) -> None:
    """Prints the night: one sentence, its scores with verdicts, and why pairs did not pass."""
    if "evaluations" not in document:
        print(message)
        return
    from flows.suite.scores import NOTHING, night_sentences, scores_table
    from tasks.comparison.runs import open_night
    from tasks.history.nights import Night
    from tasks.reporting.tables import one_line
    from tasks.reporting.terminal import console
    from tasks.store.storage import Store

    night = Night.model_validate(document)
    runs = list(open_night(night, Store(document["store"])).values())
    comparison = document["comparison"] or NOTHING
    print(one_line(f"{night.title}: {document['headline']}"), end="\n\n")
    console().print(scores_table(runs, comparison["pairs"]))
    for sentence in night_sentences(runs, comparison):
        print(sentence)


def _document(suite: Path, options: Any, flow_run_id: str) -> dict[str, Any]:
    """What the night left in its folder; empty where it did not get that far."""
    from flows.suite.plan import load_suite, plan_night

    planned = plan_night(load_suite(suite), options, flow_run_id)
    folder = Path(planned.output)
    left = json.loads(file.read_bytes()) if (file := folder / "suite.json").is_file() else {}
    if left:
        left["markdown"] = (folder / "suite.md").read_text(encoding="utf-8")
    return {**left, "output": str(folder), "store": planned.store}


main = app.main

if __name__ == "__main__":
    main()
