"""``nightjar check CONFIG`` (``python -m flows.check``): every mistake of a config and its dataset, with its
line. Renders every prompt, asks no model, and computes no score."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from flows.command_line import App, examples
from flows.config.schema import EvalConfig
from metrics.errors import ConfigError, NightjarError
from tasks.benchmarks.config import BenchmarkFields
from tasks.datasets.config import UnfitItem

MOST = 20
"""So many mistakes of one kind are listed."""

app = App()


@app.command(epilog=examples("python -m flows.check my_benchmark.yaml"))
def check_command(
    configs: Annotated[list[Path], typer.Argument(help="YAML files of evaluations")],
    overrides: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, over the config")] = None,
) -> None:
    """Lists the mistakes of a config and of its dataset (the first 20); exit code 2 if there are any."""
    from flows.config.load import load_configs
    from flows.config.source import refuse_dropped

    refuse_dropped(overrides or ())
    for path in configs:
        for config in load_configs(path, tuple(overrides or ())):
            print(f"{path}: {checked(config, tuple(overrides or ()))}")


def checked(config: EvalConfig, overrides: Sequence[str] = ()) -> str:
    """What is to be said of a config without mistakes; raises ConfigError that lists them."""
    from flows.config.schema import DEFAULT_OPTIONS
    from flows.eval.ahead import check_dataset
    from flows.plan.build import make_plan
    from flows.plan.fields import benchmark_fields
    from tasks.datasets.selection import Selection
    from tasks.models.config import ModelConfig
    from tasks.preflight import unfit_item
    from tasks.reporting.numbers import plural

    fields = benchmark_fields(config)
    found = check_dataset(config, fields, Selection(), overrides)
    unfit = islice(_not_rendered(config, fields, overrides), MOST)
    mistakes = [*_lost_recordings(config, overrides), *unfit]
    if not mistakes and config.scorer is not None:
        # None is asked or served: their names and samples are all that counts.
        models = [ModelConfig(name=one.name, sample_params=one.sample_params) for one in config.models]
        plan = make_plan(config.model_copy(update={"models": models}), DEFAULT_OPTIONS)
        mistakes = unfit_item(plan.checks((), unscored=[pair.name for pair in plan.pairs()]))
    if mistakes:
        raise ConfigError("\n".join(dict.fromkeys(mistakes)))
    said = [f"{config.name}: no mistakes, {plural(found.count, 'item')}"]
    if config.dataset is not None and config.dataset.path is not None:
        form = config.dataset.form
        said.append(f"encoding {form.encoding or 'utf-8'}")
        if config.dataset.path.lower().endswith(".csv"):
            said.append(f"delimiter {form.delimiter or ','!r}")
    if found.missing is not None:
        said.append(f"warning: {found.missing.sentence}")
    return ", ".join(said)


def _lost_recordings(config: EvalConfig, overrides: Sequence[str]) -> Iterator[str]:
    """Files of recorded responses that are not there or can't be read, as messages."""
    from flows.config.checks import written
    from flows.config.errors import Problem, located_message
    from flows.config.files import files_of
    from tasks.models.providers.recordings import recording_file

    for file in files_of(config):
        if not file.replayed:
            continue
        said = f"'{file.name}' is not there: expected a file at {file.path}"
        if file.path.exists():
            try:
                recording_file(file.path)
                continue
            except NightjarError as error:
                said = str(error)
        yield located_message(written(config, overrides), Problem(file.location, said))


def _not_rendered(config: EvalConfig, fields: BenchmarkFields, overrides: Sequence[str]) -> Iterator[str]:
    """Why items can't be asked about, as messages: a template, a few-shot example, an image."""
    from flows.config.checks import located_unfit
    from tasks.benchmarks.open import open_benchmark

    benchmark = open_benchmark(fields)
    said: set[str] = set()
    for item in benchmark.items():
        for prompt in benchmark.prompt_names():
            try:
                list(benchmark.render(prompt, [item]))
            except NightjarError as error:
                message = str(error)
                if isinstance(error, UnfitItem):
                    message = located_unfit(error, config, overrides)
                if message not in said:
                    said.add(message)
                    yield message


main = app.main

if __name__ == "__main__":
    main()
