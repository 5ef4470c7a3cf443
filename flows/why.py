"""Why each step of a run was computed or came from the cache: ``python -m flows.why RUN [STEP]``.

Reads what the run's manifest says of its task runs, and, for the steps asked about, what their keys were made
of and how that differs from the last record of the same step. Values are shown only where they are numbers,
switches or short words; texts and whatever may be a secret are kept as digests and only said to have changed.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from flows.command_line import App, examples, print_json
from metrics.aliases import nearest
from metrics.errors import ConfigError
from tasks.history.layout import FORGOTTEN, RUNS, known_runs, read_json
from tasks.store.home import default_store
from tasks.store.reasons import Reason, differences, read_reason, rows_that_differ
from tasks.store.storage import Store

app = App()


@app.command(
    epilog=examples(
        "python -m flows.why results/RUN",
        "python -m flows.why RUN infer",
    )
)
def why_command(
    run: Annotated[str, typer.Argument(help="output folder or run id")],
    step: Annotated[
        str | None, typer.Argument(help="stage, or a part of a step's name, such as exact_match")
    ] = None,
    store: Annotated[str | None, typer.Option(help="URI of the artifact store")] = None,
    every: Annotated[bool, typer.Option("--all", help="without STEP: each step, not the summary")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False,
) -> None:
    """Says why the steps of a run were computed or came from the cache: a summary, or with STEP or --all each
    step, and with STEP all that differed."""
    if step is not None and every:
        raise ConfigError("--all lists the steps of a whole run; leave it or STEP out")
    place = Store(store or default_store())
    place.check_readable()
    manifest = manifest_of(run, place)
    if store is None and manifest.get("store") and str(manifest.get("run_id")) not in known_runs(place):
        place = Store(
            str(manifest["store"])
        )  # a store that was copied knows its runs wherever they were made
    entries = chosen_steps(run, manifest, step)
    explained = [explanation(place, entry, in_full=step is not None) for entry in entries]
    if as_json:
        print_json({"run": run, "steps": explained})
        return
    if step is None and not every:
        for line in summary_lines(explained):
            print(line)
        return
    for entry in explained:
        print(step_line(entry))
        for detail in entry["differences"][1:] if step is not None else ():
            print(f"    and {detail}")
        if step is not None and entry["compared_with"] is not None:
            print(f"    compared with {entry['compared_with']}")


REASONS = 5
"""Reasons that the summary names for each stage, at most."""


def summary_lines(explained: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """How many steps of each stage were computed, cached or failed, and the most frequent reasons."""
    stages: dict[str, list[Mapping[str, Any]]] = {}
    for entry in explained:
        stages.setdefault(str(entry["stage"]), []).append(entry)
    for stage, entries in stages.items():
        outcomes = Counter(str(entry["outcome"]) for entry in entries)
        yield f"{stage}: {', '.join(f'{n:,} {outcome}' for outcome, n in outcomes.items())}"
        reasons = Counter((str(entry["outcome"]), str(entry["differences"][0])) for entry in entries)
        for (outcome, reason), n in reasons.most_common(REASONS):
            yield f"    {n:,} {outcome}: {reason}"
        if len(reasons) > REASONS:
            yield f"    and {len(reasons) - REASONS:,} more reasons"
    yield f"{len(explained):,} steps; --all lists them, a stage or a part of a step's name shows those"


def manifest_of(run: str, store: Store) -> dict[str, Any]:
    """The manifest of the run in a folder, or of one that the store knows by its id; raises ConfigError."""
    file = Path(run) / "manifest.json"
    if file.is_file():
        try:
            document = orjson.loads(file.read_bytes())
        except ValueError as error:
            raise ConfigError(f"{file}: is no JSON document: {error}") from error
        if isinstance(document, dict):
            return document
        raise ConfigError(f"{file}: holds no JSON object")
    for folder in (RUNS, FORGOTTEN):
        if run in store.names(folder, ".json"):
            return read_json(store, f"{folder}/{run}.json")
    known = known_runs(store)
    hint = nearest(run, known) or f" ({len(known)} runs are recorded there)"
    raise ConfigError(f"'{run}' is neither an output folder nor a run in the store {store.uri}{hint}")


def chosen_steps(run: str, manifest: Mapping[str, Any], step: str | None) -> list[Mapping[str, Any]]:
    """The task runs of a manifest whose stage or name ``step`` is or is part of; raises ConfigError for
    none."""
    entries: Sequence[Mapping[str, Any]] = manifest.get("task_runs") or ()
    if not entries:
        raise ConfigError(f"'{run}' was made by a version that did not keep why its steps were computed")
    if step is None:
        return list(entries)
    found = [entry for entry in entries if step == entry["stage"]]
    found = found or [entry for entry in entries if step.lower() in str(entry["step"]).lower()]
    if not found:
        names = [str(entry["step"]) for entry in entries]
        raise ConfigError(f"'{run}' has no step '{step}'{nearest(step, names)}; it has {', '.join(names)}")
    return found


def explanation(store: Store, entry: Mapping[str, Any], in_full: bool) -> dict[str, Any]:
    """One step: what became of it and why; ``in_full`` reads its inputs and names every difference."""
    reason = read_reason(store, str(entry["stage"]), str(entry["key"])) if entry.get("key") else None
    found: dict[str, Any] = {**entry, "computed_by": None, "compared_with": None, "differences": []}
    if reason is None:
        return found | {"differences": [str(entry["why"])]}
    found |= {"computed_by": reason.run_id, "computed_at": reason.made}
    before = read_reason(store, str(entry["stage"]), reason.previous) if reason.previous else None
    if entry["outcome"] == "cached":
        return found | {"differences": [f"unchanged since {_run_of(reason)}"]}
    if before is None or not in_full:
        return found | {"differences": [reason.because]}
    count = partial(rows_that_differ, store)
    sentences = differences(store, before, reason, count) or [reason.because]
    return found | {"differences": sentences, "compared_with": _run_of(before)}


def _run_of(reason: Reason) -> str:
    return f"run {reason.run_id or 'unnamed'} ({reason.made})"


def step_line(entry: Mapping[str, Any]) -> str:
    """One line: what became of the step, its name with model and prompt, and why."""
    about = [str(entry[name]) for name in ("model_name", "prompt_template") if name in entry]
    place = " · ".join(name for name in about if f" {name} " not in f"{entry['step']} ")
    named = f"{entry['step']} ({place})" if place else str(entry["step"])
    return f"{entry['outcome']:9} {named}: {entry['differences'][0]}"


main = app.main

if __name__ == "__main__":
    main()
