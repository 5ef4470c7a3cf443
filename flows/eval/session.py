"""How a command line runs one evaluation in its own process: checked, run against a server, stopped, shown.

Everything that can be refused is refused before a flow run exists. Ctrl-C ends the process at once, because
what was answered is kept as it comes.
"""

import asyncio
import os
import shlex
import signal
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from prefect import Flow
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext

from flows.command_line import FAILED, INTERRUPTED, clear_status, status, typed_command, warn
from flows.config.checks import MissingReferences, check_templates
from flows.config.files import kept_outputs
from flows.config.schema import FAILED_REQUESTS, EvalConfig, Phase, RunOptions
from flows.eval.ahead import CheckedDataset, check_dataset
from flows.eval.flow import evaluate
from flows.eval.publishing import Evaluation
from flows.eval.run import check_servers, forecast_servers
from flows.eval.runners import MANY_RESPONSES, MOST_PROCESSES, task_runner_named
from flows.eval.start import config_for_phase, refuse_unanswered, settled_models, with_defaults, workspace
from flows.graph.forecast import forecast, unanswered, unscored
from flows.graph.preview import preview
from flows.graph.stages import known_stages
from flows.plan.build import make_plan
from flows.plan.steps import Plan
from flows.plan.stopping import all_asked, expected_asked
from flows.power import Asked, History, pair_powers, said_to_decide
from flows.server import link, send, serving
from metrics.aliases import nearest
from metrics.errors import ConfigError, NightjarError
from tasks.benchmarks.open import open_benchmark
from tasks.caching import peek
from tasks.comparison.runs import unpriced
from tasks.history.prune import begin_night, continued_night, end_night
from tasks.load import keep_ahead, load
from tasks.models.tally import asked_and_reused
from tasks.preflight import Checks, check_ahead, survey, try_item
from tasks.processes.endings import ending_all, interrupted
from tasks.processes.workers import cores, prepare
from tasks.reporting import numbers
from tasks.reporting.diagnostics.findings import Diagnostic, Example
from tasks.reporting.progress import ProgressBoard, open_board
from tasks.reporting.terminal import (
    console,
    diagnostics_text,
    next_command,
    ratings_tables,
    results_table,
)
from tasks.store.outputs import RESPONSES
from tasks.usercode.surroundings import kept_streams

if TYPE_CHECKING:
    from rich.console import Console

ENDING_SECONDS: Final = 5.0
"""How long Ctrl-C waits for what has to be ended with the process."""


@dataclass(frozen=True)
class SessionOptions:
    """How a command line runs evaluations: where tasks run, whether it prints a JSON document only, and the
    overrides that the config was read with."""

    task_runner: str = "threads"
    quiet: bool = False
    overrides: tuple[str, ...] = ()
    force: bool = False
    """Whether a run starts although pairs of it are known to fail."""


def checked_options(config: EvalConfig, options: RunOptions, session: SessionOptions) -> RunOptions:
    """The options of a run in this process with every default decided, once its checks have passed.

    Raises NightjarError, before a flow run exists, for whatever can't work as far as the first seconds tell.
    """
    status(f"checking {config.name}: dataset, templates, metrics, endpoints")
    command = shlex.join(typed_command())
    complete = _complete(config, options).model_copy(update={"command": command})
    _flow_on(session.task_runner)
    check_servers(config)
    check_run(config, complete, session)
    return complete


def _complete(config: EvalConfig, options: RunOptions) -> RunOptions:
    """The options with every default decided; a night that an earlier command left unfinished goes on."""
    complete = with_defaults(config, options, uuid.uuid4().hex)
    if options.night is not None or not _has_a_night(config, options):
        return complete
    store = workspace(complete).open()
    return complete.model_copy(update={"night": continued_night(store, config.model_dump(mode="json"))})


def _has_a_night(config: EvalConfig, options: RunOptions) -> bool:
    """Whether it matters in which night answers are asked for."""
    return config.answers == "fresh" and options.phase is not Phase.SCORE


def run_evaluation(
    config: EvalConfig, options: RunOptions, session: SessionOptions
) -> tuple[int, dict[str, Any]]:
    """Runs an evaluation whose options were checked; returns exit code and document of ``--json``."""
    flow = _flow_on(session.task_runner)
    store, named = workspace(options).open(), config.model_dump(mode="json")
    if _has_a_night(config, options):
        begin_night(store, named, str(options.night))
    status("looking for the Prefect server, or starting one")
    board = ProgressBoard(sys.stderr, currency=config.prices.currency, idle=f"evaluating {config.name}")
    with serving() as ui, kept_streams(), interruptible(), open_board(board):
        state: State[Any] = asyncio.run(flow(config, options, return_state=True))
    evaluation = Evaluation(str(options.output))
    is_whole = state.is_completed() or evaluation.is_whole_of(str(state.state_details.flow_run_id))
    if config.answers == "fresh" and is_whole:
        end_night(store, named)
    document = _document_of(evaluation, state)
    code = 0 if state.is_completed() else FAILED
    document["flow_run_url"] = f"{ui}/runs/flow-run/{state.state_details.flow_run_id}"
    if not session.quiet:
        print_evaluation(evaluation, document, explained=_is_explained(state))
    return code, document


def _is_explained(state: State[Any]) -> bool:
    """Whether the run's own files say why it ended in this state: not of an error, which the state carries,
    nor of a run that was stopped."""
    return state.is_completed() or (state.name == "Failed" and state.data is None)


def _flow_on(name: str) -> Flow[..., Coroutine[Any, Any, Any]]:
    if name == SessionOptions.task_runner:
        return evaluate  # as it is: a copy works out the form of its parameters once more
    return evaluate.with_options(task_runner=task_runner_named(name))


def check_run(config: EvalConfig, options: RunOptions, session: SessionOptions) -> Plan:
    """Checks output folder, store, dataset, endpoints and keys of a run, and tries its pairs on the first
    item; raises NightjarError."""
    for reason in _unwritable(OUTPUT, Path(str(options.output))):
        raise ConfigError(reason)
    decided = settled_models(config_for_phase(config, options))
    kept_outputs(decided, Path(str(options.output)))
    plan = make_plan(decided, options, time.time())
    if not plan.models:
        raise ConfigError("no checkpoint is new: all that match were evaluated before (checkpoints.new_only)")
    _check_refresh(plan, options)
    workspace(options).open().check_writable()
    unanswerable = _take_dataset(plan, options, session)
    lacking = unanswered(plan, workspace(options), options.phase)
    refuse_unanswered(options, lacking.names)
    open_pairs = unscored(plan, workspace(options), lacking, options.phase)
    checks = plan.checks(lacking.models, lacking.others(options.phase), open_pairs)
    with kept_streams(), serving() if checks.need_secrets else nullcontext():
        found = check_ahead(checks)
        failures = [*lacking.broken, *found.failures, *_failures_without_reference(checks, unanswerable)]
    clear_status()
    doubts = [unanswerable.sentence] if unanswerable is not None else []
    doubts += all_asked(plan, options)
    for warning in [*doubts, *found.warnings, *(failures if session.force else ())]:
        warn(warning)
    if failures and not session.force:
        raise ConfigError(_shortened_failures(failures))
    return plan


def _failures_without_reference(checks: Checks, missing: MissingReferences | None) -> list[str]:
    """Pairs that raise on an item without any right answer."""
    return [] if missing is None or missing.first is None else try_item(checks, missing.first, missing.place)


def _shortened_failures(failures: list[str]) -> str:
    """In three lines: a pair that fails, how many more do, and what to do."""
    more = (
        [f"and {numbers.plural(len(failures) - 1, 'more pair')} (--dry-run lists them)"]
        if failures[1:]
        else []
    )
    return "\n".join([failures[0], *more, FORCE])


FORCE = (
    "--force runs all the same: a pair that raises on a response is marked as failed, the others are computed"
)


def forecast_document(
    config: EvalConfig, options: RunOptions, overrides: tuple[str, ...], show: int = 1
) -> dict[str, Any]:
    """What a run would send and compute, the first ``show`` items as they are asked, and everything that it
    would refuse or warn about. Nothing is sent but the question what the endpoints serve."""
    complete = _complete(config, options)
    decided = settled_models(config_for_phase(config, complete), ask=False)
    plan = make_plan(decided, complete, time.time())
    store = workspace(complete).open()
    store.check_readable()
    unanswerable = _check_dataset(plan, complete, overrides).missing
    found = forecast(plan, workspace(complete))
    refused = [*_unwritable(OUTPUT, Path(str(complete.output)))]
    refused += _unwritable("--store", Path(store.root)) if store.local else ()
    lacking = found.unanswered(plan)
    for check in (
        partial(kept_outputs, decided, Path(str(complete.output))),
        partial(_check_refresh, plan, complete),
        partial(refuse_unanswered, complete, lacking.names),
    ):
        try:
            check()
        except ConfigError as error:
            refused.append(str(error))
    checks = plan.checks(lacking.models, lacking.others(complete.phase), found.unscored())
    with kept_streams(), serving() if checks.need_secrets else nullcontext():
        tried = survey(checks)
        failures = [*lacking.broken, *tried.failures, *_failures_without_reference(checks, unanswerable)]
    return {
        "benchmark": config.name,
        "currency": config.prices.currency,
        **found.as_dict(),
        **preview(plan, found, show).as_dict(),
        "servers": forecast_servers(plan, found),
        "power": _power(plan.config, complete, found.items),
        "refused": [*refused, *tried.refused],
        "failures": failures,
        "stopping": expected_asked(plan, complete, found.items, found.to_send),
        "warnings": [
            *([unanswerable.sentence] if unanswerable is not None else []),
            *all_asked(plan, complete),
            *tried.warnings,
        ],
    }


def _power(config: EvalConfig, options: RunOptions, items: int) -> list[dict[str, Any]]:
    """Which margins the run's items decide, as ``python -m flows.power`` says."""
    names = ("pair", "model", "items", "samples", "decides", "source")
    history = History(workspace(options).open(), [config.name])
    powers = pair_powers(config, history, Asked(items))
    return [{name: getattr(power, name) for name in names} for power in powers]


def _check_refresh(plan: Plan, options: RunOptions) -> None:
    """Refuses a stage or pair that the run does not have, or does not come to."""
    pairs = [f"{pair.identity.filter}:{pair.identity.metric.name}" for pair in plan.pairs()]
    stages = (*known_stages(), FAILED_REQUESTS)
    known = {*stages, *pairs, *(pair.name for pair in plan.pairs())}
    reached = {FAILED_REQUESTS, *known_stages("grid")} if options.phase is Phase.INFER else known
    for name in options.refresh:
        if name in known - reached:
            raise ConfigError(f"--refresh {name}: phase infer does not come to it; leave it out")
        if name not in known:
            raise ConfigError(
                f"--refresh {name}: no such stage or pair{nearest(name, known)} (stages: "
                f"{', '.join(stages)}; pairs: {', '.join(pairs) or 'none'})"
            )


def _take_dataset(plan: Plan, options: RunOptions, session: SessionOptions) -> MissingReferences | None:
    """As ``_check_dataset``; the run that follows in this process need not read again, and has processes."""
    prepare_for = partial(_prepare_for, options=options, session=session)
    dataset = _check_dataset(plan, options, session.overrides, prepare_for)
    if dataset.rows is not None:
        keep_ahead(plan.load, dataset.rows, dataset.held)
    prepare_for(dataset.count)
    return dataset.missing


def _check_dataset(
    plan: Plan,
    options: RunOptions,
    overrides: tuple[str, ...],
    seen: Callable[[int], None] | None = None,
) -> CheckedDataset:
    """Reads the items that the run will take, all of them unless they were read before: a line that can't be
    used is refused now and not in the flow."""
    setup = plan.load.setup
    if peek(load, plan.load, workspace=workspace(options)) is not None:
        first = next(setup.selection.of(open_benchmark(setup.benchmark).items()), None)
        if first is not None:
            check_templates(plan.config, first, overrides)
        return CheckedDataset(None, 0, 0, None)
    return check_dataset(plan.config, setup.benchmark, setup.selection, overrides, seen)


def _prepare_for(items: int, options: RunOptions, session: SessionOptions) -> None:
    """Has processes prepared for a run of so many items: as many as were asked for, else one a core where
    there are many. A runner of other processes or machines needs none here."""
    if session.task_runner != SessionOptions.task_runner:
        return
    if options.workers is not None:
        prepare(options.workers)
    elif items >= MANY_RESPONSES:
        prepare(min(cores(), MOST_PROCESSES))


def print_evaluation(evaluation: Evaluation, document: dict[str, Any], explained: bool) -> None:
    """The table, what deserves a look, and where everything is; and why the run ended so, unless that is
    ``explained`` by these."""
    out = console()
    if "run_id" not in document or (document["status"] != "Completed" and not document["results"]):
        print(f"{document['status']}: {document['message']}\n{document['flow_run_url']}", file=sys.stderr)
        return
    if not explained:
        print(f"{document['status']}: {document['message']}", file=sys.stderr)
    if document["results"]:
        out.print(results_table(evaluation.results))
        for part in ratings_tables(evaluation.manifest.get("ratings") or ()):
            out.print(part)
    else:
        out.print(document["message"], evaluation.folder / RESPONSES)
    text = diagnostics_text([_diagnostic(entry) for entry in document["diagnostics"] or ()])
    if text.plain:
        out.print(text)
    requests, steps = document["requests"], document["steps"]
    computed = sum(entry["computed"] for entry in steps.values())
    cached = sum(entry["cached"] for entry in steps.values())
    for model, reason in evaluation.manifest["over_budget"].items():
        out.print(f"{model}: {reason}", style="bold red", markup=False)
    for name, entry in (evaluation.manifest.get("published") or {}).items():
        if entry["error"] is not None:
            out.print(f"not published to {name}: {entry['error']}", style="bold red", markup=False)
            out.print("The numbers are complete; the same command sends them again.")
    if document["status"] != "Completed":
        helping = next_command(evaluation.manifest, typed_command())
        said = f"Fix the errors above, then rerun. This computes only what is missing: {helping}"
        if evaluation.is_whole_of(document["flow_run_id"]):
            said = f"Nothing is missing. Fix the errors above, then rerun: {helping}"
        out.print(said, markup=False, soft_wrap=True)
    page = link(document["flow_run_url"])
    # A terminal wraps a path or an address by itself; a line break in it would be copied along.
    places = f"report:  {evaluation.report}\nPrefect: {page}  (make stop ends the server)"
    out.print(places, markup=False, soft_wrap=True)
    left_out = unpriced(evaluation.manifest)
    tokens, cost = document["tokens"]["total"], numbers.money(document["cost"], document["currency"])
    out.print(
        f"{numbers.duration(document['wall_seconds'])}; requests: {asked_and_reused(requests)}, "
        f"{requests['failed']:,} failed; "
        f"steps: {computed} computed, {cached} cached; {numbers.count(tokens)} tokens"
        + (f"; {cost}" if document["cost"] else "")
        + (f" (unpriced: {', '.join(left_out)})" if left_out else "")
    )


def print_together(documents: Sequence[Mapping[str, Any]]) -> None:
    """The numbers of several runs in one table; of one that has none was said why when it ended."""
    import pyarrow as pa

    found = [Evaluation(document["output"]).results for document in documents if document["results"]]
    if found:
        table = pa.concat_tables(found, promote_options="default")
        console().print("\n", results_table(table, title="All together"))


def _diagnostic(entry: dict[str, Any]) -> Diagnostic:
    examples = tuple(Example(**example) for example in entry["examples"])
    return Diagnostic(**{**entry, "examples": examples})


def print_plan(document: dict[str, Any]) -> None:
    """What ``--dry-run`` found, for people."""
    out = console()
    for entry in document.get("runs", [document]):
        if "configs" in entry:
            for config in entry["configs"]:
                said = [config["reason"]] if config["reason"] else config["warnings"]
                out.print("\n         ".join([f"{config['status']:8} {config['path']}", *said]))
            continue
        _print_forecast(out, entry)


def _print_forecast(out: "Console", entry: dict[str, Any]) -> None:
    requests = entry["requests"]
    for shown in entry["prompts"]:
        out.print(f"prompt {shown['prompt']}, {shown['place']}:", style="bold", markup=False)
        for message in shown.get("messages") or [{"role": None, "content": shown.get("text")}]:
            role = f"[{message['role']}] " if message["role"] else ""
            out.print(textwrap.indent(f"{role}{message['content']}", "    "), markup=False)
        for name in ("continuations", "references"):
            if shown.get(name):
                listed = " | ".join(map(repr, shown[name]))
                out.print(f"  {'expected' if name == 'references' else name}: {listed}", markup=False)
    out.print(
        f"{entry['benchmark']}: {numbers.plural(entry['items'], 'item')}, {_to_send(requests, 'request')} "
        f"to send, {_cached(requests)}",
        style="bold",
        markup=False,
    )
    for name, expected in entry["expected"].items():
        out.print(f"  {name}: {_expectation(expected, entry['currency'])}", markup=False)
        told = ", ".join(f"{key} {value!r}" for key, value in expected["parameters"].items())
        out.print(f"    asked with {told}", markup=False)
    for judge, count in entry["judges"].items():
        sent = f"{count['to_send']} of them" if count["to_send"] is not None else _DEPENDS
        out.print(f"  {judge} judges: {sent}, {_cached(count)}", markup=False)
    for user, expected in entry["expected_users"].items():
        out.print(f"  {user} as the user: {_expectation(expected, entry['currency'])}", markup=False)
    for turn in entry["turns"] if any(turn["turn"] > 1 for turn in entry["turns"]) else ():
        asked = f"{turn['model']} as the user" if turn["user"] else turn["model"]
        said = f"{_to_send(turn)} to send, {_cached(turn)}"
        out.print(f"  turn {turn['turn']}, {asked}: {said}", markup=False)
    for server in entry["servers"]:
        out.print(f"  {_server_line(server)}", markup=False)
    for pair in entry["pairs"]:
        out.print(f"  {pair['filter']} × {pair['metric']}: {pair['state']}", markup=False)
    for power in entry["power"]:
        said = said_to_decide(power["items"], power["samples"], power["decides"])
        out.print(f"  {power['pair']}, {power['model']}: {said} ({power['source']})", markup=False)
    if (stopping := entry["stopping"]) is not None:
        out.print(f"  {stopping['said']}", markup=False)
    for kind, style in (("warnings", "yellow"), ("failures", "bold red"), ("refused", "bold red")):
        for sentence in dict.fromkeys(entry[kind]):
            said = {"warnings": "warning", "failures": "would fail", "refused": "would be refused"}[kind]
            out.print(f"{said}: {sentence}", style=style, markup=False)
    if entry["failures"]:
        out.print(FORCE)


_DEPENDS = "how many depends on the answers"


def _to_send(count: dict[str, Any], noun: str = "") -> str:
    """How many requests, where answers decide between which numbers."""
    most = count.get("to_send_at_most")
    said = f"{count['to_send']}" if most is None else f"at least {count['to_send']}, at most {most}"
    return f"{said} {noun}" if noun and said == "1" else f"{said} {noun}s" if noun else said


def _cached(count: dict[str, Any]) -> str:
    """How many requests have an answer, and how many will get that of another."""
    equal = count.get("equal", 0)
    return f"{count['cached'] - equal} cached" + (f", {equal} equal to one to send" if equal else "")


def _server_line(server: dict[str, Any]) -> str:
    """Which server would start, where, and for how many requests."""
    count = (
        f"requests; {_DEPENDS}"
        if server["requests"] is None
        else numbers.plural(server["requests"], "request")
    )
    place = numbers.plural(server["gpus"], "GPU") if server["gpus"] else "the CPU"
    at = f" ({', '.join(server['candidates'])})" if server["candidates"] else ""
    return f"serves {server['model']} with {server['server']} on {place}{at}, for {count}: {server['path']}"


def _expectation(expected: dict[str, Any], currency: str | None) -> str:
    """What asking one model takes, in a line."""
    answers, cost, hours = (
        expected[key] for key in ("completion_tokens_at_most", "cost_at_most", "hours_at_least")
    )
    least, most = expected["requests"], expected["requests_at_most"]
    sent, longest = expected["prompt_tokens"], expected["prompt_tokens_at_most"]
    said = f"about {numbers.count(sent)}"
    if longest != sent:
        said += " or more" if longest is None else f" to {numbers.count(longest)}"
    asked = (
        numbers.plural(least, "request") if least == most else f"at least {least} and at most {most} requests"
    )
    parts = [
        asked + (" in batches" if expected["by_batch"] else ""),
        f"{said} tokens sent",
    ]
    if answers is None:
        parts.append("no limit on the tokens received (max_tokens)")
    elif answers:
        parts.append(f"at most {numbers.count(answers)} received")
    if cost:
        parts.append(f"at most {numbers.money(cost, currency)}")
    if hours is not None:
        parts.append(f"{numbers.duration(3600 * hours)} or more at the configured rate")
    return ", ".join(parts)


def _document_of(evaluation: Evaluation, state: State[Any]) -> dict[str, Any]:
    """What ``--json`` prints of the run that ended so; of one that was not published, why."""
    ended = {"message": state.message, "status": state.name}
    with suppress(NightjarError):
        # A run that writes nothing leaves its folder to the one that had it before.
        if evaluation.manifest.get("flow_run_id") == str(state.state_details.flow_run_id):
            return evaluation.document() | ended
    return {"results": [], "output": evaluation.output} | ended


OUTPUT: Final = "--output (or NIGHTJAR_RESULTS)"
"""Where a run's folder comes from, for messages."""


def _unwritable(option: str, folder: Path) -> Iterator[str]:
    """Why nothing could be written there, without making the folder: a plan leaves nothing behind, nor
    does what is refused."""
    folder = folder.expanduser().absolute()
    there = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        yield f"{option} {folder}: can't be written: {error.strerror or error}; choose another folder"


class interruptible:  # noqa: N801 - reads as a verb where it is used
    """Ctrl-C ends the process at once: every finished response has been kept before it counted as done. What
    others would meet is ended first, for a few seconds at most; a second Ctrl-C does not wait for that."""

    def __enter__(self) -> None:
        self._before = {
            number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)
        }

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        for again in self._before:
            signal.signal(again, _leave)
        interrupted.set()  # what is in flight is dropped, what is answered is flushed
        print(
            "\ninterrupted: finished responses are kept; the same command goes on from them", file=sys.stderr
        )
        with ending_all(ENDING_SECONDS):
            _cancel_flow_run()
        sys.stderr.flush()
        # Threads may be in the middle of requests: nothing that still has to be written is in memory only.
        _leave()


def _leave(*_: object) -> None:
    os._exit(INTERRUPTED)


def _cancel_flow_run() -> None:
    """Says so on the run's page, if the server answers in time."""
    context = FlowRunContext.get()
    if context is not None and context.flow_run is not None:
        state = {"type": "CANCELLED", "name": "Cancelled", "message": "interrupted"}
        send(f"/flow_runs/{context.flow_run.id}/set_state", {"state": state, "force": True}, seconds=2)
