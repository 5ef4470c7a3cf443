"""``python -m flows.power CONFIG [--margin .02] [--power .8]``: how many items and samples decide a gate."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from flows.command_line import command_line, examples, new_app, print_json
from tasks.store.home import default_store
from tasks.store.storage import Store

app = new_app()


@app.command(
    epilog=examples(
        "python -m flows.power my_benchmark.yaml --margin 0.02",
    )
)
def power_command(
    config: Annotated[Path, typer.Argument(help="YAML file of the evaluation")],
    margin: Annotated[
        float, typer.Option(min=0, help="loss that a gate lets pass, in the metric's units")
    ] = 0.02,
    power: Annotated[float, typer.Option(min=0.5, max=0.999, help="chance that the gate decides")] = 0.8,
    alpha: Annotated[float, typer.Option(min=0.0001, max=0.5, help="level of the gate")] = 0.05,
    differ: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="share of items that differ between two runs; default: the history's"
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="only the first items")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, over the config")] = None,
    store: Annotated[str | None, typer.Option(help="URI of the artifact store")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False,
) -> None:
    """Says what decides a gate: items × samples, requests, tokens and cost.

    A margin is decided where a candidate as good as the baseline passes with the power asked for.
    """
    from flows.config.load import load_configs
    from flows.plan.power import Asked, count_items, pair_powers

    place = Store(store or default_store())
    place.check_readable()
    documents = []
    for loaded in load_configs(config, tuple(overrides or ())):
        asked = Asked(count_items(loaded, limit), margin, alpha, power, differ)
        pairs = pair_powers(loaded, place, asked)
        documents.append(
            {
                "benchmark": loaded.name,
                "margin": margin,
                "alpha": alpha,
                "power": power,
                "currency": loaded.prices.currency,
                "pairs": [pair.as_dict() for pair in pairs],
            }
        )
        if not as_json:
            _show(loaded.name, pairs, loaded.prices.currency)
    if as_json:
        print_json(documents[0] if len(documents) == 1 else {"benchmarks": documents})


def _show(benchmark: str, pairs: Sequence[object], currency: str | None) -> None:
    from rich import box
    from rich.table import Table

    from flows.plan.power import PairPower, said_to_decide
    from tasks.reporting import numbers
    from tasks.reporting.terminal import console

    out = console()
    if not pairs:
        out.print(f"{benchmark}: no pair whose number is a mean of items, or nothing says how they spread")
    for pair in pairs:
        assert isinstance(pair, PairPower)
        out.print(f"{benchmark}, {pair.pair}, {pair.model}: {pair.source}")
        finds = "" if pair.finds is None else f", and call a loss of {pair.finds:.2g} a regression"
        out.print(
            f"  {said_to_decide(pair.items, pair.samples, pair.decides)}{finds}; to decide {pair.margin:g}:"
        )
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        cost = f"Cost ({currency})" if currency else "Cost"
        for name in ("Samples", "Items", "Requests", "Prompt tokens", "Completion tokens", cost, ""):
            table.add_column(name, justify="right")
        for design in pair.designs:
            taken = design.cost
            table.add_row(
                str(design.samples),
                "no number" if design.items is None else numbers.count(design.items),
                numbers.count(taken.requests if taken else None),
                numbers.count(taken.prompt_tokens if taken else None),
                numbers.count(taken.completion_tokens if taken else None),
                numbers.money(taken.cost if taken else None),
                "" if design.fits or design.items is None else "more than there are",
            )
        out.print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command and exits."""
    command_line(app, arguments)


if __name__ == "__main__":
    main()
