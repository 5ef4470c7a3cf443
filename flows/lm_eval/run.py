"""Evaluates what a command line of the harness asks for, and writes its files where it writes them."""

import json
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flows.command_line import clear_status, print_json, status, warn
from flows.config.load import ChosenConfigs, Refused, load_selected
from flows.config.schema import EvalConfig, RunOptions
from flows.config.source import override
from flows.lm_eval.arguments import HarnessArguments
from flows.lm_eval.benchmarks import check_samples, overrides_of
from flows.lm_eval.models import AskedModel, asked_model
from metrics.errors import ConfigError
from tasks.benchmarks.lm_eval.about import HarnessCommand

if TYPE_CHECKING:
    from tasks.benchmarks.lm_eval import Definition

PUSHES: Final = ("push_results_to_hub", "push_samples_to_hub")
WANDB: Final = ("project", "entity", "mode", "name", "base_url")


def folders(include_path: str | None) -> list[Path]:
    """Folders of definitions: those of an installed harness, and over them that of ``--include_path``."""
    spec = find_spec("lm_eval")
    places = spec.submodule_search_locations or () if spec is not None else ()
    found = [Path(place) / "tasks" for place in places]
    if include_path is not None:
        found += [Path(part) for part in include_path.split(":") if part]
    if not found:
        raise ConfigError(
            "no folder of definitions is known: add --include_path DIR, such as the folder lm_eval/tasks of "
            "a checkout of lm-evaluation-harness, or install the extra 'harness'"
        )
    return found


def run(arguments: HarnessArguments) -> int:
    """Runs the command; returns its exit code. Raises NightjarError for what can't work."""
    _refuse(arguments)
    model = asked_model(arguments)
    chosen = _chosen(arguments, model)
    clear_status()
    for sentence in (*chosen.warnings, *model.notes, *_notes(arguments)):
        warn(sentence)
    own_options = [(config, _options(config, arguments)) for config in chosen.configs]
    from flows.eval.session import SessionOptions, forecast_document, print_together
    from flows.eval.together import run_together, write_harness_files

    if arguments.write_out:
        for config, own in own_options:
            _show_first(forecast_document(config, own, (), 1))
    session = SessionOptions(force=arguments.force)
    code, ran = run_together(chosen, own_options, session)
    if arguments.output_path is not None:
        command = HarnessCommand(
            arguments.model, _config(arguments), arguments.log_samples or arguments.predict_only
        )
        for path in write_harness_files(chosen, ran, arguments.output_path, command):
            print(f"lm-evaluation-harness: {path}")
            if arguments.show_config:
                print_json(json.loads(path.read_bytes()))
    if len(ran) > 1:
        print_together([document for _, document in ran])
    return code


def _refuse(arguments: HarnessArguments) -> None:
    """Raises ConfigError for a flag that has no counterpart, with what to do instead."""
    if isinstance(arguments.apply_chat_template, str):
        raise ConfigError(
            f"--apply_chat_template {arguments.apply_chat_template}: the server applies its own template; "
            "name another one where the server is started, and leave the name out here"
        )
    if arguments.check_integrity:
        raise ConfigError(
            "--check_integrity runs the harness's own tests; python -m flows.lm_eval validate --tasks … "
            "checks definitions here"
        )
    if arguments.trackio_args:
        raise ConfigError("--trackio_args: numbers don't go to Trackio; use --wandb_args, or publish: mlflow")
    if arguments.wandb_config_args:
        raise ConfigError("--wandb_config_args: the run has its whole config already; leave it out")
    unknown = [name for name in arguments.wandb_args if name not in WANDB]
    if unknown:
        raise ConfigError(f"--wandb_args {unknown[0]}: taken are {', '.join(WANDB)}; set others there")
    if arguments.wandb_args and "project" not in arguments.wandb_args:
        raise ConfigError("--wandb_args: project=NAME is missing")
    pushed = [name for name in PUSHES if arguments.hf_hub_log_args.get(name)]
    if pushed:
        raise ConfigError(
            f"--hf_hub_log_args {pushed[0]}: results are not pushed from here; send the folder of "
            "--output_path by 'hf upload REPOSITORY FOLDER --repo-type dataset', or write publish: {hub: …} "
            "into a config"
        )
    if arguments.show_config and arguments.output_path is None:
        raise ConfigError("--show_config prints the results document; add --output_path, where it is written")


def _notes(arguments: HarnessArguments) -> Iterator[str]:
    """What needs no flag here."""
    if arguments.use_cache is not None:
        yield "--use_cache needs nothing: answers are kept in the store, and no request is sent twice"
    if arguments.cache_requests in (True, "true", "delete"):
        yield "--cache_requests needs nothing: prompts are kept in the store until something in them changes"
    if arguments.verbosity is not None:
        yield "--verbosity has no effect: the environment variable PREFECT_LOGGING_LEVEL sets the log's level"
    if arguments.hf_hub_log_args:
        yield "--hf_hub_log_args has no effect, since nothing is to be pushed"


def _chosen(arguments: HarnessArguments, model: AskedModel) -> ChosenConfigs:
    status(f"reading {', '.join(arguments.tasks)}")
    refused: list[Refused] = []
    shared = list(_published(arguments))

    def overrides(definition: "Definition") -> Sequence[str]:
        return [*overrides_of(definition, arguments, model), *shared]

    configs, selection = load_selected(
        arguments.tasks, folders(arguments.include_path), overrides,
        refused=refused if arguments.force else None,
    )  # fmt: skip
    check_samples(selection, arguments)
    return ChosenConfigs(configs, selection.groups, tuple(selection.warnings), refused=tuple(refused))


def _published(arguments: HarnessArguments) -> Iterator[str]:
    """``--wandb_args`` as an entry of ``publish:``."""
    if arguments.wandb_args:
        about = {key: value for key, value in arguments.wandb_args.items() if key != "name"}
        about["samples"] = arguments.log_samples
        yield override("publish", [{"wandb": about}])


def _options(config: EvalConfig, arguments: HarnessArguments) -> RunOptions:
    """Which documents of a benchmark are asked, and what is computed again."""
    assert config.harness is not None, "definitions of the harness are chosen alone"
    numbers = arguments.samples.get(str(config.harness["task"]), ())
    name = arguments.wandb_args.get("name")
    return RunOptions(
        limit=_limit(config, arguments.limit),
        samples=",".join(map(str, numbers)) or None,
        run_name=None if name is None else str(name),
        refresh=("render",) if arguments.cache_requests == "refresh" else (),
        workers=None,
    )


def _limit(config: EvalConfig, limit: float | None) -> int | None:
    """So many documents; of a share, rounded up."""
    if limit is None or limit >= 1:
        return None if limit is None else int(limit)
    from tasks.benchmarks.open import open_benchmark

    return -int(-sum(1 for _ in open_benchmark(config).items()) * limit // 1)


def _config(arguments: HarnessArguments) -> dict[str, Any]:
    """The section ``config`` of the results."""
    python, numpy, torch, fewshot = arguments.seed
    return {
        "model": arguments.model,
        "model_args": dict(arguments.model_args),
        "batch_size": arguments.batch_size,
        "batch_sizes": [],
        "device": arguments.device,
        "use_cache": arguments.use_cache,
        "limit": arguments.limit,
        "bootstrap_iters": None,
        "gen_kwargs": dict(arguments.gen_kwargs),
        "random_seed": python,
        "numpy_seed": numpy,
        "torch_seed": torch,
        "fewshot_seed": fewshot,
    }


def _show_first(plan: dict[str, Any]) -> None:
    """The first prompt of a benchmark, and what is right."""
    for shown in plan["prompts"]:
        print(f"{plan['benchmark']}, {shown['place']}:")
        for message in shown.get("messages") or [{"role": None, "content": shown.get("text")}]:
            role = f"[{message['role']}] " if message["role"] else ""
            print(f"{role}{message['content']}")
        for name in ("continuations", "references"):
            if shown.get(name):
                print(f"({name}: {' | '.join(map(repr, shown[name]))})")
