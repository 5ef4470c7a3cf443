"""``nightjar check CONFIG`` (``python -m flows.check``): every mistake of a config and its dataset, with its
line. Asks no model, and computes nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from flows.command_line import command_line, examples, new_app
from flows.config.schema import EvalConfig

app = new_app()


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

    found = check_dataset(config, benchmark_fields(config), Selection(), overrides)
    said = [f"{config.name}: no mistakes, {plural(found.count, 'item')}"]
    if config.dataset is not None and config.dataset.path is not None:
        form = config.dataset.form
        said.append(f"encoding {form.encoding or 'utf-8'}")
        if config.dataset.path.lower().endswith(".csv"):
            said.append(f"delimiter {form.delimiter or ','!r}")
    if found.missing is not None:
        said.append(f"warning: {found.missing.sentence}")
    return ", ".join(said)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command and exits."""
    command_line(app, arguments)


if __name__ == "__main__":
    main()
