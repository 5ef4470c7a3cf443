"""What the harness's flags change in each benchmark of a command line, as overrides of its config."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from flows.config.source import override
from flows.lm_eval.arguments import SEEDS, HarnessArguments
from flows.lm_eval.models import AskedModel
from metrics.aliases import nearest
from metrics.errors import ConfigError
from tasks.benchmarks.lm_eval import Definition, SelectedBenchmarks
from tasks.benchmarks.lm_eval.translation import LENGTH_KEYS, generation_arguments, known_generation_arguments

MOST_GENERATED: Final = "generate_until"


def overrides_of(definition: Definition, arguments: HarnessArguments, model: AskedModel) -> Iterator[str]:
    """The ``KEY=VALUE`` of one benchmark; raises ConfigError for what it may not do, or has no way to do."""
    config, where = definition.config, definition.where
    generates = config.get("output_type", MOST_GENERATED) == MOST_GENERATED
    if model.chats and not generates:
        raise ConfigError(
            f"{where}: {definition.name} asks for log-likelihoods, which --model {arguments.model} does not "
            "give; use --model local-completions without --apply_chat_template"
        )
    if config.get("unsafe_code") and not arguments.confirm_run_unsafe_code:
        raise ConfigError(
            f"{where}: {definition.name} runs programs that the model writes (unsafe_code); add "
            "--confirm_run_unsafe_code: those of evaluate.load('code_eval') run in a sandbox"
        )
    yield from _of_prompts(config, arguments)
    if definition.name in arguments.samples:
        yield override("harness.documents", arguments.samples[definition.name])
    generation = generation_arguments(config, where) if generates else {}
    extra: dict[str, Any] = {}
    if generates and arguments.gen_kwargs:
        generation, extra = _generation(generation, arguments.gen_kwargs)
        yield override("generation_kwargs", generation)
    if arguments.predict_only:
        yield override("metric_list", [{"metric": "bypass"}])
        yield override("process_results", None)
    if config.get("custom_dataset") is not None or (arguments.metadata and config.get("metadata")):
        yield override("metadata", _metadata(config, arguments))
    if arguments.confirm_run_unsafe_code and config.get("unsafe_code"):
        yield "harness.allow_unsafe_code=true"
    stops = generation.get("stop") or generation.get("until") or []
    says_length = any(generation.get(key) is not None for key in LENGTH_KEYS)
    stops = [stops] if isinstance(stops, str) else list(stops)
    yield override("models", [model.of_benchmark(stops, says_length, generates, extra)])


def _of_prompts(config: Mapping[str, Any], arguments: HarnessArguments) -> Iterator[str]:
    if arguments.num_fewshot is not None and config.get("num_fewshot") != 0:  # 0 stands there, too
        yield override("num_fewshot", arguments.num_fewshot)
    if arguments.chat:
        yield "harness.apply_chat_template=true"
        yield override("harness.fewshot_as_multiturn", arguments.multiturn)
    if arguments.system_instruction is not None:
        yield override("harness.system_instruction", arguments.system_instruction)
    python, numpy, _, fewshot = arguments.seed
    if fewshot is None:
        raise ConfigError("--seed: None for few-shot examples draws others each time; name a number")
    if fewshot != SEEDS[3]:
        yield override("harness.fewshot_seed", fewshot)
    seeds = [SEEDS[0] if python is None else python, SEEDS[1] if numpy is None else numpy]
    if seeds != [*SEEDS[:2]]:
        yield override("harness.seeds", seeds)


def _generation(own: dict[str, Any], given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A benchmark's own arguments with those of the command line over them, and apart what an endpoint is to
    be sent that no config here has a key for."""
    extra = {key: value for key, value in given.items() if key not in known_generation_arguments()}
    return {**own, **{key: value for key, value in given.items() if key not in extra}}, extra


def _metadata(config: Mapping[str, Any], arguments: HarnessArguments) -> dict[str, Any]:
    """What a function that makes documents is given: the model's arguments, and over them the flag's."""
    own = config.get("metadata")
    return {**(own if isinstance(own, Mapping) else {}), **arguments.model_args, **arguments.metadata}


def check_samples(selection: SelectedBenchmarks, arguments: HarnessArguments) -> None:
    """Raises ConfigError where ``--samples`` names a benchmark that is not selected."""
    for name in arguments.samples:
        if name not in selection.benchmarks:
            raise ConfigError(
                f"--samples: --tasks selects no benchmark '{name}'{nearest(name, selection.benchmarks)}"
            )
