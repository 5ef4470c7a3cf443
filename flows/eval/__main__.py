"""What ``python -m flows.eval`` takes, in which order it runs evaluations, and how it ends.

It imports Prefect only after the settings are made. Benchmarks of lm-evaluation-harness also get the
harness's own result files, groups included.
"""

from flows.command_line import clear_status, status

if __name__ == "__main__":
    status(
        "reading the config"
    )  # before the imports below: they take a second, and a reader should not wonder

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from flows.command_line import REFUSED, App, examples, print_json, warn
from flows.config.schema import Phase, RunOptions
from metrics.errors import ConfigError
from tasks.datasets.selection import Selection
from tasks.processes.workers import may_fork, prepare
from tasks.store.home import default_store
from tasks.usercode.load import trust_what_is_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flows.config.load import ChosenConfigs, CommandInputs
    from flows.config.schema import EvalConfig
    from flows.eval.session import SessionOptions


app = App()


@app.command(
    epilog=examples(
        "python -m flows.eval my_benchmark.yaml --dry-run",
        "python -m flows.eval my_benchmark.yaml --limit 20 --model Qwen/Qwen3-8B",
        "python -m flows.eval my_benchmark.yaml --model gpt-4o-mini \\",
        "    --base-url https://api.openai.com/v1 --api-key-env OPENAI_API_KEY",
        "python -m flows.eval my_benchmark.yaml --model-path runs/sft/step-1000",
        "python -m flows.eval my_benchmark.yaml --samples random:200@1",
        "python -m flows.eval my_benchmark.yaml --set sample_params.temperature=0",
        "python -m flows.eval my_benchmark.yaml --against RUN --gate gate.yaml",
    )
)
def evaluate_command(
    configs: Annotated[
        list[Path] | None, typer.Argument(help="YAML files; without any, the embedded default")
    ] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, over the config")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Model to evaluate: one of the config's by name, or another; repeatable"),
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="Address of --model; default: the config's first endpoint")
    ] = None,
    api: Annotated[str | None, typer.Option(help="chat or completions")] = None,
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable with the API key")] = None,
    model_path: Annotated[
        list[str] | None,
        typer.Option(help="Folder of weights to serve and evaluate, or a pattern; repeatable"),
    ] = None,
    serve: Annotated[
        str | None, typer.Option(help="Server for --model-path: vllm, … (python -m flows.catalog servers)")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first items")] = None,
    samples: Annotated[
        str | None, typer.Option(help="Positions from 0, as 7,9,100-120, or random:200@SEED; before --limit")
    ] = None,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="With --limit: random items instead of the first")
    ] = False,
    output: Annotated[Path | None, typer.Option(metavar="PATH", help="Folder of the run's files")] = None,
    store: Annotated[str | None, typer.Option(help="URI of the artifact store")] = None,
    run_name: Annotated[str | None, typer.Option(help="Name of the run")] = None,
    refresh: Annotated[
        list[str] | None,
        typer.Option(help="Stage, FILTER:METRIC, or failed (requests), to compute again; repeatable"),
    ] = None,
    phase: Annotated[
        Phase | None,
        typer.Option(help="infer: ask only; score: score what is answered already; default: all"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, send nothing")] = False,
    show_prompts: Annotated[
        int | None,
        typer.Option(min=0, help="Show the first N prompts and send nothing; --dry-run shows 1"),
    ] = None,
    no_data: Annotated[
        bool, typer.Option("--no-data", help="With --dry-run: do not open the dataset")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Run what can be run: pairs, or benchmarks of a list, that fail are left out"
        ),
    ] = False,
    task_runner: Annotated[
        str, typer.Option(help="threads, processes, dask, dask:ADDRESS or dask:slurm://…")
    ] = "threads",
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes for computing; default: 1, or one a core for large runs"),
    ] = None,
    against: Annotated[str | None, typer.Option(help="Baseline for --gate: output folder or run id")] = None,
    gate: Annotated[
        Path | None, typer.Option(help="Gate file: exit 1 for a regression, 3 if it can't tell")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout")] = False,
    tasks: Annotated[
        str | None, typer.Option(help="Benchmarks of lm-evaluation-harness: NAME,… or patterns")
    ] = None,
    include_path: Annotated[list[Path] | None, typer.Option(help="Folder of their YAML files")] = None,
    from_samples: Annotated[Path | None, typer.Option(help="Sample logs of lm-evaluation-harness")] = None,
    from_inspect: Annotated[
        list[Path] | None, typer.Option(help="Logs of Inspect, or folders: their scores, nothing is asked")
    ] = None,
    from_lighteval: Annotated[
        list[Path] | None,
        typer.Option(help="Details of lighteval (Parquet), or folders: as they were scored"),
    ] = None,
    from_opencompass: Annotated[
        list[Path] | None, typer.Option(help="Folders of OpenCompass (predictions/ and results/), as scored")
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run code of folders that others can write to, from now on")
    ] = False,
) -> None:
    """Evaluates language models on benchmarks, and keeps every step so that nothing is computed twice."""
    from flows.config.load import CommandInputs, choose_configs, validation_document
    from flows.config.models import ModelFlags
    from tasks.store.storage import store_uri

    trust_what_is_named(trust)
    # Whole paths, before users' code is loaded: it may choose another working folder.
    options = RunOptions(
        **_chosen_items(samples, shuffle, limit), output=str(output.absolute()) if output else None,
        store=store_uri(store) if store else None, run_name=run_name, refresh=tuple(refresh or ()),
        phase=phase or Phase.ALL, workers=workers,
    )  # fmt: skip
    named = tuple({path.absolute(): path for path in configs or ()}.values())
    inputs = CommandInputs(
        named, tuple(overrides or ()), tasks, tuple(include_path or ()), from_samples,
        _recorded(inspect=from_inspect, lighteval=from_lighteval, opencompass=from_opencompass),
        ModelFlags(tuple(model or ()), base_url, api, api_key_env, tuple(model_path or ()), serve), force,
    )  # fmt: skip
    if no_data:
        _check_without_data(inputs, dry_run, show_prompts)
        document, code = validation_document(inputs)
        _print(document, as_json)
        raise typer.Exit(code)
    chosen = choose_configs(inputs)
    clear_status()
    if shuffle and limit is None and not any(about is not None and about.limit for about in chosen.settings):
        raise ConfigError("--shuffle needs --limit: add it, or choose by --samples random:NUMBER")
    for warning in chosen.warnings:
        warn(warning)
    if task_runner != "threads":
        from flows.eval.runners import refuse_memory, refuse_spending, task_runner_named

        task_runner_named(task_runner)
        refuse_memory(task_runner, store or default_store())
        for config in chosen.configs:
            refuse_spending(task_runner, config.limits)
    if against is not None or gate is not None:
        options = _held_against(chosen, options, phase, against, gate)
    if dry_run or show_prompts is not None:
        from flows.eval.session import forecast_document

        status("counting what is to be asked")
        plans = [
            forecast_document(config, own, inputs.overrides, 1 if show_prompts is None else show_prompts)
            for config, own in _own_options(chosen, options, phase)
        ]
        _print(_one_or_many(plans), as_json)
        stopped = any(plan["refused"] or (plan["failures"] and not force) for plan in plans)
        raise typer.Exit(REFUSED if stopped else 0)
    own_options = list(_own_options(chosen, options, phase))
    if not may_fork():
        prepare(workers or 1)
    from flows.eval.session import SessionOptions

    session = SessionOptions(task_runner, as_json, inputs.overrides, force)
    raise typer.Exit(_run_all(chosen, own_options, session, options.output))


def _check_without_data(inputs: "CommandInputs", dry_run: bool, show_prompts: int | None) -> None:
    """Raises ConfigError where ``--no-data`` would be dropped, or drop another option."""
    if not dry_run:
        raise ConfigError("--no-data needs --dry-run: add it; without it, models are asked")
    if show_prompts is not None:
        raise ConfigError("--show-prompts reads the dataset; leave --no-data out")
    if inputs.from_samples is not None or any(inputs.recorded.values()):
        raise ConfigError("--no-data looks at configs and --tasks alone; leave it out")


def _held_against(
    chosen: "ChosenConfigs", options: RunOptions, phase: Phase | None, run: str | None, gate: Path | None
) -> RunOptions:
    """The options of an evaluation that is compared with a run; raises ConfigError for several ones, and for
    one that computes no score."""
    from flows.eval.against import against_run

    if len(chosen.configs) != 1:
        names = ", ".join(config.name for config in chosen.configs)
        raise ConfigError(f"--against {run} takes one benchmark, got several: {names}")
    if any(own.phase is Phase.INFER for _, own in _own_options(chosen, options, phase)):
        raise ConfigError("phase infer computes no score that a gate could judge; leave --against out")
    found = against_run(run, gate, chosen.configs[0], options.store)
    return options.model_copy(update={"against": found})


def _chosen_items(samples: str | None, shuffle: bool, limit: int | None) -> dict[str, Any]:
    """The options that choose items; raises ConfigError for ``--samples`` that can't be read."""
    try:
        return Selection(samples=samples, shuffle=shuffle, limit=limit).model_dump(
            exclude={"order", "blocks"}
        )
    except ValidationError as error:
        raise ConfigError(f"--samples {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error


def _run_all(
    chosen: "ChosenConfigs",
    own_options: Sequence[tuple["EvalConfig", RunOptions]],
    session: "SessionOptions",
    output: str | None,
) -> int:
    """Runs one evaluation after the other and shows them; the exit code is the worst of them."""
    from flows.eval.session import print_together
    from flows.eval.together import run_together, write_harness_files

    code, ran = run_together(chosen, own_options, session)
    written = write_harness_files(chosen, ran, output)
    documents = [document for _, document in ran]
    if session.quiet:
        _print(_one_or_many(documents), as_json=True)
    for path in written if not session.quiet else ():
        print(f"lm-evaluation-harness: {path}")
    if len(documents) > 1 and not session.quiet:
        print_together(documents)
    return code


def _recorded(**paths: list[Path] | None) -> dict[str, tuple[Path, ...]]:
    """The paths that each program's flag names."""
    return {program: tuple(named) for program, named in paths.items() if named}


def _own_options(
    chosen: "ChosenConfigs", options: RunOptions, phase: Phase | None
) -> "Iterator[tuple[EvalConfig, RunOptions]]":
    """Each evaluation with its options: what the command line leaves open a two-phase config may say."""
    from flows.eval.together import own_folders

    settings = chosen.settings or (None,) * len(chosen.configs)
    for (config, own), about in zip(own_folders(chosen, options), settings, strict=True):
        if about is None:
            yield config, own
            continue
        said = {
            "phase": phase or Phase(about.phase or Phase.ALL),
            "output": own.output or about.output,
            "limit": own.limit or about.limit,
        }
        yield config, RunOptions.model_validate({**own.model_dump(), **said})


def _one_or_many(documents: list[dict[str, Any]]) -> dict[str, Any]:
    return documents[0] if len(documents) == 1 else {"runs": documents}


def _print(document: dict[str, Any], as_json: bool) -> None:
    clear_status()
    if as_json:
        print_json(document)
        return
    from flows.eval.session import print_plan

    print_plan(document)


main = app.main

if __name__ == "__main__":
    main()
