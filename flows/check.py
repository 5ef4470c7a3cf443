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

    for path in configs:
        for config in load_configs(path, tuple(overrides or ())):
            print(f"{path}: {checked(config, tuple(overrides or ()))}")


def checked(config: EvalConfig, overrides: Sequence[str] = ()) -> str:
    """What is to be said of a config without mistakes; raises ConfigError that lists them."""
    from flows.eval.ahead import check_dataset
    from flows.plan.fields import benchmark_fields
    from tasks.datasets.selection import Selection
    from tasks.reporting.numbers import plural

    fields = benchmark_fields(config)
    found = check_dataset(config, fields, Selection(), overrides)
    unfit = islice(_not_rendered(config, fields, overrides), MOST)
    if mistakes := [*_lost_recordings(config, overrides), *unfit]:
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
    """Files of recorded responses that are not there, as messages."""
    from flows.config.checks import written
    from flows.config.errors import Problem, located_message
    from flows.config.files import files_of

    for file in files_of(config):
        if file.replayed and not file.path.exists():
            problem = Problem(file.location, f"'{file.name}' is not there: expected a file at {file.path}")
            yield located_message(written(config, overrides), problem)


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
