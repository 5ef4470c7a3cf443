"""The evaluations of one command, one after the other: all are checked before the first begins, the exit code
is the worst of them, and one that can't run leaves the others to run under ``--force``."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.command_line import FAILED, clear_status
from flows.config.load import ChosenConfigs, Refused, left_out, raise_if_alone
from flows.config.schema import EvalConfig, RunOptions
from metrics.errors import ConfigError
from tasks.processes.garbage import freeze_imports

if TYPE_CHECKING:
    from flows.eval.session import SessionOptions
    from tasks.benchmarks.lm_eval.about import HarnessCommand

Document = dict[str, Any]


def run_together(
    chosen: ChosenConfigs,
    own_options: Sequence[tuple[EvalConfig, RunOptions]],
    session: "SessionOptions",
) -> tuple[int, list[tuple[EvalConfig, Document]]]:
    """Runs each evaluation with its options: the exit code, and the document of ``--json`` of each that ran.

    Raises NightjarError for what can't work; under ``session.force`` only where nothing else is left to run.
    """
    from flows.eval.session import checked_options, run_evaluation

    freeze_imports()
    refused = list(chosen.refused)
    for one in refused:
        _tell(one)
    # All of them before the first: an evaluation of hours should not end in the refusal of the next.
    alone = len(own_options) + len(refused) == 1 or not session.force
    checked: list[tuple[EvalConfig, RunOptions]] = []
    for config, own in own_options:
        before = len(refused)
        with left_out(config.name, None if alone else refused):
            checked.append((config, checked_options(config, own, session)))
        for one in refused[before:]:
            _tell(one)
    raise_if_alone(checked, refused)
    documents, codes = [], [FAILED] if refused else []
    for config, own in checked:
        code, document = run_evaluation(config, own, session)
        if own.against is not None and document["results"]:
            from flows.eval.against import held_against

            judged, told = held_against(own, session.quiet)
            code, document = code or judged, document | told
        documents.append((config, document))
        codes.append(code)
    return max(codes), documents


def _tell(refused: Refused) -> None:
    clear_status()
    print(f"error: {refused.name} is left out: {refused.reason}", file=sys.stderr)


def own_folders(chosen: ChosenConfigs, options: RunOptions) -> Iterator[tuple[EvalConfig, RunOptions]]:
    """Each evaluation with its options: of several, each has a folder of its own in ``--output``."""
    names = [config.name for config in chosen.configs]
    for config in chosen.configs:
        if options.output is None or len(names) + len(chosen.refused) == 1:
            yield config, options
            continue
        if names.count(config.name) > 1:
            raise ConfigError(
                f"--output {options.output}: several benchmarks are called '{config.name}', and one would "
                "overwrite the other's files; give each a name of its own, or leave --output out"
            )
        yield config, options.model_copy(update={"output": f"{options.output}/{config.name}"})


def write_harness_files(
    chosen: ChosenConfigs,
    documents: Sequence[tuple[EvalConfig, Mapping[str, Any]]],
    output: str | None,
    command: "HarnessCommand | None" = None,
) -> list[Path]:
    """Writes the harness's own files for the evaluations that were published; returns the results files.

    They lie below ``output``, else in the last run's folder. Groups are aggregated over the benchmarks of
    this command. ``command`` is what a command line of the harness said.
    """
    pairs = [
        (config, document)
        for config, document in documents
        if config.harness is not None and document["results"]
    ]
    if not pairs:
        return []
    from tasks.benchmarks.lm_eval import results as harness_results

    runs = [
        harness_results.FinishedRun(config.model_dump(mode="json"), Path(document["output"]))
        for config, document in pairs
    ]
    folder = Path(output) if output is not None else runs[-1].folder
    return harness_results.write_harness_files(runs, chosen.groups, folder, datetime.now(), command)
