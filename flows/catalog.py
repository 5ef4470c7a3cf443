"""``python -m flows.catalog [KIND]``: every name that a config may use, its meaning and its source; and with
``config [KEY]`` every key."""

import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from flows.command_line import App, examples, print_json
from metrics.aggregation import build_aggregation
from metrics.aliases import nearest
from metrics.errors import ConfigError
from metrics.registry import (
    AGGREGATIONS,
    METRICS,
    REDUCTIONS,
    MetricDefinition,
    NamedFunction,
    first_paragraph,
    load_plugin,
    plugin_origin,
    plugins,
)
from metrics.statistics.rules import rule_of

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

OF_METRIC: Final = "the metric's"
OWN: Final = "this project"


@dataclass(frozen=True)
class CatalogEntry:
    """One name of the catalogue. ``default`` is what holds where the config says nothing."""

    kind: str
    name: str
    meaning: str
    range: str = ""
    direction: str = ""
    default: str = ""
    applies_to: str = ""
    source: str = ""


def catalog(kind: str | None = None) -> list[CatalogEntry]:
    """The entries of one kind, or of all; raises KeyError for a kind that is none."""
    listings = LISTINGS.values() if kind is None else [LISTINGS[kind]]
    return [entry for listing in listings for entry in listing()]


def _listed(
    kind: str,
    group: str,
    names: Iterable[str],
    find: Callable[[str], T],
    entry_of: Callable[[str, T], CatalogEntry],
) -> Iterator[CatalogEntry]:
    """An entry for each name. The source of a plugin of the ``group`` is its distribution; of one that does
    not load the entry says why."""
    added = plugins(group)
    for name in names:
        try:
            entry = entry_of(name, find(name))
        except ConfigError as error:
            yield CatalogEntry(kind, name, str(error), applies_to="not here")
            continue
        yield replace(entry, source=plugin_origin(added[name])) if name in added else entry


_DIRECTIONS: Final[Mapping[bool | None, str]] = {
    True: "higher is better",
    False: "lower is better",
    None: OF_METRIC,
}


def _metrics() -> Iterator[CatalogEntry]:
    yield from _listed("metrics", "nightjar.metrics", METRICS, METRICS.__getitem__, _metric)
    yield from _metrics_of_scorers()


def _metric(name: str, definition: MetricDefinition) -> CatalogEntry:
    return CatalogEntry(
        "metrics",
        name,
        definition.summary,
        range=_span(definition.bounds),
        direction=_DIRECTIONS[
            build_aggregation(definition.aggregation).better_up(definition.higher_is_better)
        ],
        default=_metric_default(definition),
        applies_to=", ".join(definition.output_types),
        source=definition.source or OWN,
    )


def _metrics_of_scorers() -> Iterator[CatalogEntry]:
    from scorers.metric_lists import SCORER_METRICS

    for name, metric in SCORER_METRICS.items():
        yield CatalogEntry(
            "metrics",
            name,
            metric.meaning,
            metric.span,
            "higher is better",
            metric.default,
            f"scorer {metric.scorer}",
            metric.source or OWN,
        )


def _metric_default(definition: MetricDefinition) -> str:
    return "; ".join(
        part for part in (f"aggregation {definition.aggregation}", _arguments(definition.function)) if part
    )


def _aggregations() -> Iterator[CatalogEntry]:
    users: dict[str, list[str]] = {}
    for name in METRICS:
        if name not in METRICS.plugins:
            users.setdefault(METRICS[name].aggregation, []).append(name)
    for name in AGGREGATIONS:
        found = users.get(name, [])
        default = f"of {', '.join(found)}" if found else ""
        entry = _named("aggregations", name, AGGREGATIONS[name], default, _span_of_aggregation(name))
        yield replace(entry, direction=_DIRECTIONS[build_aggregation(name).higher_is_better])


def _span(bounds: tuple[float, float]) -> str:
    return " to ".join(map(_number, bounds))


def _span_of_aggregation(name: str) -> str:
    bounds = build_aggregation(name).bounds
    unknown = bounds == (-math.inf, math.inf)
    return AGGREGATIONS[name].span or (OF_METRIC if unknown else _span(bounds))


def _reductions() -> Iterator[CatalogEntry]:
    for name in REDUCTIONS:
        definition, default = REDUCTIONS[name], "where none is named" if name == "mean" else ""
        yield _named("reductions", name, definition, default, definition.span or OF_METRIC)


def _named(kind: str, name: str, definition: NamedFunction, default: str, span: str) -> CatalogEntry:
    return CatalogEntry(
        kind, name, definition.summary, span, OF_METRIC, default, source=definition.source or OWN
    )


def _filters() -> Iterator[CatalogEntry]:
    from scorers.filters import FILTERS, FilterDefinition

    repeats = {"all": "keeps every repeat", "first": "keeps the first repeats", "one": "one for all repeats"}

    def entry(name: str, definition: FilterDefinition) -> CatalogEntry:
        return CatalogEntry(
            "filters",
            name,
            definition.summary,
            default=_arguments(definition.function),
            applies_to=repeats.get(definition.keeps or "", "keeps what the function keeps"),
            source=definition.source,
        )

    yield from _listed("filters", "nightjar.filters", FILTERS, FILTERS.__getitem__, entry)


def _scorers() -> Iterator[CatalogEntry]:
    from scorers.config import SCORER_CONFIGS, DefaultScorerConfig

    yield CatalogEntry(
        "scorers", "generation", "Each prediction against its references.", default="for generate_until"
    )
    yield CatalogEntry(
        "scorers",
        "loglikelihood",
        "Log-likelihoods of choices or documents.",
        default="for other output types",
    )
    yield CatalogEntry(
        "scorers",
        "process_results",
        "A user's function per response.",
        default="where process_results is set",
    )
    for name, config in SCORER_CONFIGS.items():
        if config is not DefaultScorerConfig:
            keys = ", ".join(key for key in config.model_fields if key != "type")
            yield CatalogEntry("scorers", name, first_paragraph(config), applies_to=f"keys: {keys}")
    added = plugins("nightjar.scorers")
    yield from _listed(
        "scorers", "nightjar.scorers", added, lambda name: load_plugin(added[name]), _own_scorer
    )
    yield CatalogEntry("scorers", "file.py:Class", "A user's own class with score(batch).")


def _own_scorer(name: str, kind: Any) -> CatalogEntry:
    return CatalogEntry("scorers", name, first_paragraph(kind))


def _models() -> Iterator[CatalogEntry]:
    from tasks.models.registry import DEFAULT, PROVIDERS, default_first

    def entry(name: str, kind: Any) -> CatalogEntry:
        keys = ", ".join(kind.schema.model_fields)
        default = "where no type is named" if name == DEFAULT else ""
        return CatalogEntry(
            "models", name, first_paragraph(kind.schema), default=default, applies_to=f"config: {keys}"
        )

    yield from _listed("models", "nightjar.providers", default_first(), PROVIDERS.__getitem__, entry)


def _evaluation_methods() -> Iterator[CatalogEntry]:
    from tasks.verdicts.config import METHOD_PARAMS

    for name, params in METHOD_PARAMS.items():
        yield CatalogEntry(
            "evaluation_methods", name, first_paragraph(params), "0 to 1", "higher is better", _fields(params)
        )


def _evaluation_metrics() -> Iterator[CatalogEntry]:
    from tasks.verdicts.config import METRIC_PARAMS

    for name, params in METRIC_PARAMS.items():
        meaning = "" if params.__name__ == "NoParams" else first_paragraph(params)
        yield CatalogEntry(
            "evaluation_metrics",
            name,
            meaning or f"{name} of each label and facet group.",
            default=_fields(params),
        )


def _sandboxes() -> Iterator[CatalogEntry]:
    """The sandboxes, strongest first: each is tried, and says why it does not work here."""
    from tasks.sandboxes.kinds import SANDBOXES
    from tasks.sandboxes.run import trouble

    for sandbox in SANDBOXES:
        reason, less = trouble(sandbox.name), sandbox.not_enforced()
        works = f"works here; not enforced: {less}" if less else "works here"
        yield CatalogEntry(
            "sandboxes",
            sandbox.name,
            first_paragraph(type(sandbox)),
            applies_to=works if reason is None else f"not here: {reason}",
        )


def _servers() -> Iterator[CatalogEntry]:
    """The servers that ``serve: {preset: NAME}`` starts, with their commands."""
    from tasks.serving.config import PRESETS, Preset

    def entry(name: str, preset: Preset) -> CatalogEntry:
        command = " ".join((*preset.command, *preset.many_gpus))
        return CatalogEntry(
            "servers",
            name,
            preset.about,
            default=f"{command}; ready when {preset.ready} answers 200",
            applies_to=f"needs: {preset.install}",
        )

    yield from _listed("servers", "nightjar.servers", PRESETS, PRESETS.__getitem__, entry)


def _stages() -> Iterator[CatalogEntry]:
    """The stages of an evaluation, in the order in which they submit their task runs."""
    from flows.graph.stages import GRAPH

    for stage in GRAPH:
        tasks = ", ".join(dict.fromkeys(task.name for task in stage.tasks))
        yield CatalogEntry(
            "stages",
            stage.gives,
            stage.meaning,
            default=f"tasks {tasks}" if tasks else "no task",
            applies_to=f"waits for {', '.join(stage.waits_for)}" if stage.waits_for else "waits for nothing",
        )


LISTINGS: Final[dict[str, Callable[[], Iterator[CatalogEntry]]]] = {
    "metrics": _metrics,
    "aggregations": _aggregations,
    "reductions": _reductions,
    "filters": _filters,
    "scorers": _scorers,
    "models": _models,
    "sandboxes": _sandboxes,
    "servers": _servers,
    "evaluation_methods": _evaluation_methods,
    "evaluation_metrics": _evaluation_metrics,
    "stages": _stages,
}


def stages_page() -> str:
    """``docs/stages.md``: every stage as a table, of the declarations that a run is submitted from."""
    rows = [
        f"| {entry.name} | {entry.meaning} | {entry.default.removeprefix('tasks ')} "
        f"| {entry.applies_to.removeprefix('waits for ')} |"
        for entry in _stages()
    ]
    return "\n".join([_STAGES_HEAD, *rows, ""])


def aggregations_page() -> str:
    """``docs/aggregations.md``: every aggregation with what it takes, its range and its error rule, as the
    code has them."""
    rows = []
    for name in AGGREGATIONS:
        built, about = build_aggregation(name), AGGREGATIONS[name]
        rule = rule_of(built.tabulate([])[0] if built.tabulate is not None else built)
        better = _DIRECTIONS[built.higher_is_better].removesuffix(" is better")
        cells = (name, about.takes, _span_of_aggregation(name), better, rule.stderr, rule.interval)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([_AGGREGATIONS_HEAD, *rows, ""])


_AGGREGATIONS_HEAD: Final = """# Aggregations and their error bars

Made by `make reference` from what the aggregations and their error rules say of themselves.
[Error bars](statistics.md) explains the rules. A function of your own has the bootstrap of the items.
Which way a number is better is what the config says, else its metric, else its aggregation, else higher.

| aggregation | takes of each sample | range | better | standard error | interval |
|---|---|---|---|---|---|"""

_STAGES_HEAD: Final = """# The stages of an evaluation

Made by `make reference` from `flows/graph/stages.py`. A run goes through the stages in this order. A stage
hands its task runs to Prefect and waits for what the last column names and for nothing else, so that what
failed in one place costs that place alone. `--refresh` takes the names of tasks; `--dry-run`, `flows.why` and
manifests use them.

| gives | what that is | tasks | waits for |
|---|---|---|---|"""


def _arguments(function: Callable[..., Any]) -> str:
    """The keyword arguments of a registered function with their defaults."""
    taken = inspect.signature(function).parameters.values()
    return ", ".join(
        f"{entry.name}={entry.default!r}"
        for entry in taken
        if entry.default is not inspect.Parameter.empty and not entry.name.startswith("_")
    )


def _fields(params: Any) -> str:
    return ", ".join(
        f"{name} (required)" if info.is_required() else f"{name}={info.get_default()!r}"
        for name, info in params.model_fields.items()
    )


def _number(value: float) -> str:
    return f"{'-' if value < 0 else ''}∞" if math.isinf(value) else f"{value:g}"


app = App()
WIDTH: Final = 100  # columns where the output is no terminal, and at most
CONFIG: Final = "config"
_ALIASES: Final = {"model_types": "models", "model_type": "models"}


def _console() -> "Console":
    from tasks.reporting.streams import safe_console

    console = safe_console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    console.width = min(console.width, WIDTH)
    return console


def _block(console: "Console", name: str, beside: str, below: Iterable[str]) -> None:
    """One entry: its name, what is short beside it, and whole texts below. Brackets in them are no markup."""
    from rich.padding import Padding
    from rich.text import Text

    head = Text.assemble((name, "bold"), f"   {beside}" if beside else "", overflow="fold")
    console.print(head, soft_wrap=False)
    for text in below:
        console.print(Padding(Text(text, overflow="fold"), (0, 0, 0, 4), expand=False))


def print_entries(kind: str, entries: list[CatalogEntry]) -> None:
    """The entries of a kind, readable at any width: nothing is cut."""
    console = _console()
    console.print(kind.replace("_", " ").upper(), style="bold underline")
    for entry in entries:
        beside = "; ".join(part for part in (entry.range, entry.direction) if part)
        scope = f"for: {entry.applies_to}" if kind == "metrics" else entry.applies_to
        default = f"default: {entry.default}" if entry.default else ""
        source = f"source: {entry.source}" if entry.source else ""
        told = [text for text in (default, scope if entry.applies_to else "", source) if text]
        _block(console, entry.name, beside, [text for text in (entry.meaning, *told) if text])
    console.print()


def _print_keys(key: str | None) -> None:
    """The keys of a config, or those below one of them."""
    from flows.config.reference import keys_named, known_paths, sections

    found = sections() if key is None else keys_named(key)
    if not found:
        raise ConfigError(
            f"key '{key}' is not known{nearest(str(key), known_paths())} "
            "(python -m flows.catalog config lists them)"
        )
    console = _console()
    for section in found:
        if section.title:
            console.print(section.title, style="bold underline", markup=False)
        if section.about:
            console.print(section.about, style="italic", markup=False)
        for entry in section.keys:
            default = f"; {entry.default}" if entry.default == "required" else f"; default {entry.default}"
            _block(console, entry.path, entry.value + (default if entry.default else ""), [entry.meaning])
        console.print()


@app.command(
    epilog=examples(
        "python -m flows.catalog metrics",
        "python -m flows.catalog config models.config",
        "python -m flows.catalog config --schema > config.schema.json",
    )
)
def catalog_command(
    kind: Annotated[
        str | None,
        typer.Argument(
            help=f"One of {', '.join(LISTINGS)}, or config: the keys of a config file; without it all names"
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Argument(help="With config: one key, such as models.config or prices")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="With config: its JSON Schema, for editors")
    ] = False,
    markdown: Annotated[
        bool,
        typer.Option("--markdown", help="With config, stages, aggregations: as docs/config.md …"),
    ] = False,
) -> None:
    """Lists the names and the keys that a config may use."""
    listing = kind.lower().replace("-", "_").replace(" ", "_") if kind is not None else None
    if listing == CONFIG:
        _config_reference(key, as_json, schema, markdown)
        return
    pages = {"stages": stages_page, "stage": stages_page, "aggregations": aggregations_page}
    if listing in pages and markdown and key is None and not schema:
        print(pages[listing](), end="")
        return
    if key is not None or schema or markdown:
        raise ConfigError(
            "KEY, --schema and --markdown belong to: python -m flows.catalog config; --markdown to stages "
            "and aggregations, too"
        )
    listing = _ALIASES.get(listing or "", listing)
    if listing is not None and listing not in LISTINGS:
        listing = listing + "s" if listing + "s" in LISTINGS else listing
    if listing is not None and listing not in LISTINGS:
        raise ConfigError(
            f"kind '{kind}' is not known{nearest(listing, [*LISTINGS, CONFIG])} "
            f"(known: {', '.join([*LISTINGS, CONFIG])})"
        )
    if as_json:
        print_json([asdict(entry) for entry in catalog(listing)])
        return
    for name in LISTINGS if listing is None else [listing]:
        print_entries(name, catalog(name))


def _config_reference(key: str | None, as_json: bool, schema: bool, markdown: bool) -> None:
    from flows.config.reference import as_markdown, json_schema, keys_named, sections

    if schema:
        print_json(json_schema())
    elif markdown:
        print(as_markdown(), end="")
    elif as_json:
        print_json([asdict(section) for section in (sections() if key is None else keys_named(key))])
    else:
        _print_keys(key)


if __name__ == "__main__":
    app.main()
