"""What a valid config may still get wrong: names, functions and template variables that are not there.

``config_problems`` needs no data and runs when a config is loaded; ``check_templates`` compares template
variables with the items and runs when the dataset is open. Each problem has its place in the file.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from flows.config.errors import Problem, misread, problem_of, refusal, schema_problems, value_at
from flows.config.schema import EvalConfig
from flows.config.source import OVERRIDE, Location, YamlSource
from flows.config.two_phase import read_native
from metrics import Metric
from metrics.aliases import nearest
from metrics.build import build_metric
from metrics.config import MetricConfig
from metrics.errors import ConfigError, NightjarError
from metrics.types import Resolve
from scorers.config import (
    FilterConfig,
    GradingModel,
    UserScorerConfig,
    grading_models,
    placed_grading_models,
)
from scorers.factory import build_scorer
from scorers.filters import FilterPipeline
from scorers.metric_lists import SCORER_METRICS, refuse_without_scorer
from tasks.benchmarks.config import PromptTemplate, SimulatedUser, template_texts
from tasks.benchmarks.native import NativeBenchmark
from tasks.datasets.config import UnfitItem
from tasks.datasets.item import Benchmark, Item
from tasks.datasets.items import check_source, open_dataset, row_places
from tasks.inspecting import check_client, check_model
from tasks.models.config import ModelConfig, SampleParams
from tasks.models.registry import is_recorded, is_reference
from tasks.rows.parts import item_field, locate
from tasks.store.home import named_path
from tasks.store.schemas import CELL_FACETS
from tasks.usercode.load import resolver

_FILE_NAME = re.compile(r"[^\s{}]*\w\.[a-z]\w{1,6}")
"""A prompt that looks like the name of a file."""
METHOD_KEYWORDS = ("response", "ground_truth", "inference_result")
EVALUATION_METRIC_KEYWORDS = ("evaluation_results", "facets")


def config_problems(config: EvalConfig) -> list[Problem]:
    """Everything in a valid config that names what does not exist or does not fit. Imports the user's
    functions.

    Filters and metrics are looked at one by one, so that each mistake has its line; what only shows when
    the scorer is built is looked at last.
    """
    resolve = resolver(config.base_dir)
    checks = (
        _templates,
        _dataset,
        _functions,
        batch_problems,
        inspect_problems,
        publish_problems,
        filter_problems,
        metric_problems,
        asked_model_problems,
        price_problems,
        label_problems,
    )
    found = [problem for check in checks for problem in check(config, resolve)]
    return found or list(scorer_problems(config, resolve))


def check_templates(config: EvalConfig, first_item: Item, overrides: Sequence[str] = ()) -> None:
    """Raises ConfigError, with file and line, for template variables and facets that no item of the dataset
    has.

    The other items are read only if the first one lacks a name: rows may differ in their fields.
    ``overrides`` are those that the config was loaded with, so that a template given by ``--set`` is named
    as such.
    """
    if problems := list(facet_problems(config, first_item)):
        raise refusal(written(config, overrides), problems)
    if config.harness is not None or config.dataset is None:
        return  # a harness YAML's variables are checked where it is translated
    from tasks.benchmarks.prompts import missing_names, scope
    from tasks.rows.turns import TURN_NAMES

    names = set(scope(first_item))
    lacking = {
        at: missing
        for at, text in _texts(config)
        if (missing := missing_names(text, names | (TURN_NAMES if at[0] == "turns" else frozenset())))
    }
    if lacking:
        names.update(*(item.data for item in open_dataset(config.dataset, config.base_dir)))
        problems = [
            Problem(at, _message(name, names))
            for at, missing in lacking.items()
            for name in missing
            if name not in names
        ]
        if problems:
            raise refusal(_told_apart(written(config, overrides), config), problems)


def facet_problems(config: EvalConfig, first_item: Item) -> Iterator[Problem]:
    """Facets that neither an item nor what is known of a model has."""
    named: list[tuple[Location, str]] = [(("facets", at), facet) for at, facet in enumerate(config.facets)]
    for index, metric in enumerate(config.metrics):
        named += [(("metrics", index, "facets", at), facet) for at, facet in enumerate(metric.facets or ())]
    told = _told_of_models(config)
    asked = [(at, facet) for at, facet in named if facet != "label" and not _is_told(facet, told)]
    lacking = [(at, facet) for at, facet in asked if not _has_field(first_item.data, facet)]
    if not lacking:
        return
    items = [first_item]
    if config.harness is None and config.dataset is not None:
        items += open_dataset(config.dataset, config.base_dir)
    fields = {str(name) for item in items for name in item.data}
    for at, facet in lacking:
        if not any(_has_field(item.data, facet) for item in items):
            known = [*CELL_FACETS, *fields, *(f"item.{name}" for name in fields)]
            known += [f"{before}{name}" for name in told or () for before in ("", "metadata.")]
            message = f"facet '{facet}' is neither a field of the items nor a facet of the models"
            listed = ", ".join(sorted(fields))
            yield Problem(at, f"{message}{nearest(facet, known)} (fields of the items: {listed})")


def _told_of_models(config: EvalConfig) -> frozenset[str] | None:
    """What the answers' metadata holds; None where that is not known before they are read."""
    if config.evaluation_methods or any(
        is_recorded(model.type) or is_reference(model.type) or model.checkpoints for model in config.models
    ):
        return None
    own = (name for model in config.models for name in model.metadata)
    return frozenset({"model_id", "prompt_template", "sampling", *own})


def _is_told(facet: str, told: frozenset[str] | None) -> bool:
    """Whether a facet's value does not come from the items, as far as is known."""
    source, path = locate(facet)
    if source == "metadata":
        return told is None or path.partition(".")[0] in told
    return source != "document"


def _has_field(data: Mapping[str, Any], facet: str) -> bool:
    field = item_field(facet)
    return field is not None and (field in data or field.partition(".")[0] in data)


NAMED_ITEMS = 5
"""Items that a sentence names, of those that lack something."""


@dataclass(frozen=True)
class MissingReferences:
    """Items of a native benchmark whose right answer is null or empty: a sentence by file and line, and the
    first that has none at all with its place."""

    sentence: str
    first: Item | None
    place: str


def missing_references(
    config: EvalConfig, benchmark: Benchmark, items: Iterable[Item]
) -> MissingReferences | None:
    """What there is to say about right answers that are not there; None where there is nothing.

    All items are read. Nothing is said where none has a right answer and none is asked for: judges and
    methods need none.
    """
    if not isinstance(benchmark, NativeBenchmark) or config.output_type != "generate_until":
        for _ in items:
            pass
        return None
    count, lacking = 0, []
    for item in items:
        count += 1
        # An empty list is a right answer: nothing is to be said, or called.
        empty_list = isinstance(item.ground_truth, list) and not item.ground_truth
        if not empty_list and not any(
            reference not in (None, "") for reference in benchmark.references(item)
        ):
            lacking.append(item)
    if not lacking or (len(lacking) == count and config.target is None):
        return None
    places = item_places(config, lacking[:NAMED_ITEMS])
    more = ", …" if len(lacking) > NAMED_ITEMS else ""
    one = "1 item has" if len(lacking) == 1 else f"{len(lacking)} of {count} items have"
    said = f"{one} no right answer (null or empty): {', '.join(places)}{more}; fill it in, or leave them out"
    none = next((item for item in lacking if not benchmark.references(item)), None)
    return MissingReferences(said, none, "" if none is None else item_places(config, [none])[0])


def item_places(config: EvalConfig, items: Sequence[Item]) -> list[str]:
    """Where items stand, as "questions.jsonl:7"; by their ids where they come from no file."""
    dataset = config.dataset
    if dataset is None or dataset.path is None:
        return [f"item '{item.item_id}'" for item in items]
    places = row_places(
        named_path(config.base_dir, dataset.path), [item.doc_id for item in items], dataset.form
    )
    return [places.get(item.doc_id, f"item '{item.item_id}'") for item in items]


def _templates(config: EvalConfig, resolve: Resolve) -> Iterator[Problem]:
    if config.harness is not None:
        return
    from tasks.benchmarks.prompts import check_syntax

    for location, text in template_texts(config):
        yield from problem_of(location, partial(check_syntax, text))
        if location[-1] in ("prompt_template", "template") and _FILE_NAME.fullmatch(text):
            yield Problem(
                location,
                f"'{text}' would be the whole prompt of each item; a file is named by "
                f"prompt_templates: [{{name: default, path: {text}}}]",
            )
    for index, prompt in enumerate(config.prompt_templates or ()):
        if prompt.path is not None:
            yield from problem_of(
                ("prompt_templates", index, "path"), partial(_check_file, prompt, config.base_dir)
            )


def _check_file(prompt: PromptTemplate, base_dir: str) -> None:
    from tasks.benchmarks.prompts import check_syntax, template_source

    check_syntax(template_source(prompt, base_dir))


def _dataset(config: EvalConfig, resolve: Resolve) -> Iterator[Problem]:
    dataset = config.dataset
    if dataset is not None:
        yield from problem_of(("dataset", "function"), partial(check_source, dataset, config.base_dir))


def _functions(config: EvalConfig, resolve: Resolve) -> Iterator[Problem]:
    if config.process_results is not None:
        yield from problem_of(
            ("process_results",), partial(_check_process_results, config.process_results, resolve)
        )
    for index, method in enumerate(config.evaluation_methods):
        if method.function is not None:
            taken = (*METHOD_KEYWORDS, *method.params)
            yield from _callable(("evaluation_methods", index, "function"), method.function, taken, resolve)
    for index, metric in enumerate(config.metrics):
        if metric.function is not None:
            taken = (*EVALUATION_METRIC_KEYWORDS, *metric.params)
            yield from _callable(("metrics", index, "function"), metric.function, taken, resolve)


def _check_process_results(reference: str, resolve: Resolve) -> None:
    """It is called by position, as lm-evaluation-harness does: whatever its parameters are called."""
    function = resolve(reference)
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise ConfigError(f"'{reference}' is called as (doc, results): {error}") from error
    except ValueError:  # a builtin that tells no signature
        return


def _callable(
    location: Location, reference: str, keywords: Sequence[str], resolve: Resolve
) -> Iterator[Problem]:
    try:
        function = resolve(reference)
    except NightjarError as error:
        yield Problem(location, str(error))
        return
    lacking = _not_taken(function, keywords)
    if lacking:
        yield Problem(location, f"'{reference}' is called with {', '.join(keywords)}: {lacking}")


def _not_taken(function: Callable[..., Any], keywords: Sequence[str]) -> str | None:
    try:
        inspect.signature(function).bind(**dict.fromkeys(keywords))
    except TypeError as error:
        return str(error)
    except ValueError:  # a builtin that tells no signature
        return None
    return None


def filter_problems(config: EvalConfig, resolve: Resolve) -> Iterator[Problem]:
    """Unknown steps, arguments that a step does not take, and steps that need more repeats than there are."""
    for index, entry in enumerate(config.filter_list or ()):
        at = ("filter_list", index, "filter")
        found = [
            problem
            for step in range(len(entry.filter))
            for problem in _step(config, entry, at, step, resolve)
        ]
        yield from found
        if not found:
            pipeline = FilterPipeline.build(entry, resolve, config.output_type)
            yield from problem_of(at, partial(pipeline.keeps, config.fewest_samples()))


def _step(
    config: EvalConfig, entry: FilterConfig, at: Location, index: int, resolve: Resolve
) -> Iterator[Problem]:
    step = entry.filter[index]
    alone = entry.model_copy(update={"filter": (step,)})
    for problem in problem_of(
        (*at, index), partial(FilterPipeline.build, alone, resolve, config.output_type)
    ):
        yield _pointed(problem, step.kwargs, "function")


def metric_problems(config: EvalConfig, resolve: Resolve) -> Iterator[Problem]:
    """Unknown metrics, arguments, reductions and aggregations, and metrics of another output type."""
    if config.process_results is not None or isinstance(config.scorer, UserScorerConfig):
        return  # their names are the function's own
    for location, metric in _metric_entries(config):
        if (config.scorer is not None and metric.metric in SCORER_METRICS) or config.asks_letters:
            continue  # listed to give the scorer's own number an alias or a reduction
        build: Callable[[], object] = partial(_check_metric, metric, resolve, config)
        if metric.metric in SCORER_METRICS:
            build = partial(refuse_without_scorer, metric.metric)
        for problem in problem_of(location, build):
            yield _pointed(problem, metric.kwargs, "metric")


def _check_metric(metric: MetricConfig, resolve: Resolve, config: EvalConfig) -> None:
    """Raises ConfigError also for what only a call would show: a pattern that is none, and a text in the
    place of a boolean, which counts as true (in a benchmark of lm-evaluation-harness it does there, too).
    """
    built = build_metric(metric, resolve, config.output_type)
    for text, flags in () if built.patterns is None else built.patterns([], **built.kwargs):
        try:
            re.compile(text, flags)
        except (re.error, TypeError) as error:
            key = next((key for key, value in built.kwargs.items() if _holds(value, text)), "")
            raise ConfigError(
                f"metric {built.name!r}: '{key}' holds {text!r}, which is no regular expression: {error}"
            ) from error
    if built.function is None or config.harness is not None:
        return
    for key, value in built.kwargs.items():
        if isinstance(value, str) and value.casefold() in _BOOLEANS and _is_flag(built.function, key):
            raise ConfigError(
                f"metric {built.name!r}: '{key}' is true or false, got {value!r}, which would count as true; "
                "write it without quotes"
            )


_BOOLEANS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n"})
"""Texts by which people mean a boolean."""


def _holds(value: Any, text: Any) -> bool:
    return bool(value == text or (isinstance(value, list | tuple) and text in value))


def _is_flag(function: Callable[..., Any], key: str) -> bool:
    """Whether a parameter's default is a boolean."""
    try:
        parameter = inspect.signature(function).parameters.get(key)
    except (TypeError, ValueError):  # a builtin that tells no signature
        return False
    return parameter is not None and isinstance(parameter.default, bool)


def _metric_entries(config: EvalConfig) -> Iterator[tuple[Location, MetricConfig]]:
    for index, metric in enumerate(config.metric_list or ()):
        yield ("metric_list", index), metric
    for place, entry in enumerate(config.filter_list or ()):
        for index, metric in enumerate(entry.metric_list or ()):
            yield ("filter_list", place, "metric_list", index), metric


def batch_problems(config: EvalConfig, resolve: Resolve) -> Iterator[Problem]:
    """Models asked by batches for what no batch gives."""
    if config.turns is not None:
        why = "the turns of a conversation wait for each other, and each batch may take hours"
    elif config.asked_type != "generate_until":
        why = "log-likelihoods are asked by single requests"
    else:
        return
    for index, model in enumerate(config.models):
        if model.by_batch:
            yield Problem(("models", index, "config", "batch"), f"{why}; leave batch out")


def inspect_problems(config: EvalConfig, resolve: Resolve) -> Iterator[Problem]:
    """Models that Inspect can't ask, and what it has no kept requests for."""
    if config.inspect is None:
        return
    if config.canaries:
        yield Problem(("canaries",), "a task of Inspect keeps no single requests; leave canaries out")
    absent = (config.inspected or {}).get("absent", ())
    for index, model in enumerate(config.models):
        try:
            check_model(model, config.sampling(model))
            check_client(model, absent)
        except ConfigError as error:
            yield Problem(("models", index), str(error))


def publish_problems(config: EvalConfig, resolve: Resolve) -> Iterator[Problem]:
    """Destinations that can't be sent to: a run of hours would end with a red step."""
    models = [model.name for model in config.models]
    for index, entry in enumerate(config.publish):
        try:
            entry.publisher.check(models)
        except ConfigError as error:
            yield Problem(("publish", index, entry.name), str(error))


def asked_model_problems(config: EvalConfig, resolve: Resolve) -> Iterator[Problem]:
    """Judges, reward models and simulated users: by name each is an entry of ``models``, else one of its own,
    whose keys and sampling parameters no schema of the scorer's knows."""
    known = [model.name for model in config.models]
    for location, sampled, grader in asked_models(config):
        if not grader.entry and grader.name not in known:
            yield Problem(
                location,
                f"'{grader.name}' is no entry of models{nearest(grader.name, known)} "
                f"(there: {', '.join(known)}); name one, or give its type and config here",
            )
        elif grader.entry:
            given = {"name": grader.name, **grader.entry}
            yield from _refused(ModelConfig, given, location)
            if given.get("checkpoints") is not None:
                yield Problem((*location, "checkpoints"), "are models, and one is asked; name it by path")
        yield from _refused(SampleParams, dict(grader.sampling), sampled)
        for key in ("num_samples", "n"):
            if grader.sampling.get(key) not in (None, 1):
                again = "; repeats asks judges again" if "judges" in location else ""
                yield Problem((*sampled, key), f"each of its replies is asked for alone{again}; leave it out")


def _refused(model: type[BaseModel], given: dict[str, Any], at: Location) -> Iterator[Problem]:
    try:
        checked = model.model_validate(given)
    except ValidationError as error:
        problems = schema_problems(error, model, given)
    else:
        problems = list(misread(checked, given))
    yield from (Problem((*at, *place), said) for place, said in problems)


def asked_models(config: EvalConfig) -> Iterator[tuple[Location, Location, GradingModel]]:
    """Each model that the scorer asks, and the one that speaks for the user, with the places of its entry and
    of how it is sampled."""
    for scorer, own, grader in placed_grading_models(config.scorer, ("scorer",)):
        yield (*scorer, *own), (*scorer, "sample_params"), grader
    if isinstance(config.turns, SimulatedUser):
        yield ("turns", "model"), ("turns", "sample_params"), config.turns.asked


def price_problems(config: EvalConfig, resolve: Resolve) -> Iterator[Problem]:
    """Prices of no model, where a model without one was meant; and models without a price under a limit of
    costs, which would never be reached. A price of a model that ``--model`` leaves out is no mistake.
    """
    asked = dict.fromkeys(_paid_models(config))
    named = config.prices.model_extra or {}
    lacking = [name for name in asked if name not in named]
    known = {*asked, *(model.name for model in config.models)}
    unknown = [name for name in named if name not in known]
    if unknown and lacking:
        entries = written(config).data.get("models") or ()
        left_out = [entry.get("name") if isinstance(entry, Mapping) else entry for entry in entries]
        unknown = [name for name in unknown if name not in left_out]
    meant = set()
    for name in unknown:
        if hint := nearest(name, lacking):
            meant |= {one for one in lacking if f"'{one}'" in hint}
            yield Problem(("prices", name), f"'{name}' is no model that is asked{hint}")
    for name in lacking if config.limits.max_cost is not None else ():
        if name not in meant:
            yield Problem(
                ("limits", "max_cost"),
                f"'{name}' has no price, so its costs are unknown and count nothing; add prices.{name}: "
                "{prompt: …, completion: …} per million tokens (0 where it is free), or leave max_cost out",
            )


def label_problems(config: EvalConfig, resolve: Resolve) -> Iterator[Problem]:
    """Metrics over evaluation results that look at no label which any method gives: a user's function gives
    any, a built-in method its name.
    """
    given = [method.name for method in config.evaluation_methods]
    if any(method.function is not None for method in config.evaluation_methods):
        return
    for index, metric in enumerate(config.metrics):
        if metric.labels is not None and not any(map(metric.labels.keeps, given)):
            hint = next(filter(None, (nearest(name, given) for name in metric.labels.include or ())), "")
            message = f"no method gives a label that this metric looks at{hint} (there: {', '.join(given)})"
            yield Problem(("metrics", index, "labels"), message)


def _paid_models(config: EvalConfig) -> Iterator[str]:
    """The names of all models that are asked: those evaluated, judges, reward models and simulated users.

    What a run serves itself is free, and checkpoints have names when it begins.
    """
    for model in config.models:
        ours = model.type == "demo" or model.serve is not None
        if not (ours or is_recorded(model.type) or model.checkpoints):
            yield model.name
    for grader in grading_models(config.scorer):
        yield grader.name
    if isinstance(config.turns, SimulatedUser):
        yield config.turns.asked.name


def scorer_problems(config: EvalConfig, resolve: Resolve) -> Iterator[Problem]:
    """What only the whole shows: names that collide, arguments of the scorer, reductions beyond the
    repeats.
    """
    try:
        scorer = build_scorer(config.scoring(), resolve)
        metrics = {entry.name: scorer.get_metrics(entry.name) for entry in config.scoring().filters}
    except NightjarError as error:
        yield Problem(_scorer_place(config, str(error)), str(error))
        return
    for index, entry in enumerate(config.scoring().filters):
        repeats = FilterPipeline.build(entry, resolve, config.output_type).keeps(config.fewest_samples())
        at: Location = (
            ("metric_list",) if entry.metric_list is None else ("filter_list", index, "metric_list")
        )
        for position, metric in enumerate(metrics[entry.name]):
            place = (*at, position) if len(metrics[entry.name]) == _listed(config, entry) else at
            yield from _too_few(place, metric, entry, repeats, config)


def _scorer_place(config: EvalConfig, message: str) -> Location:
    for index, entry in enumerate(config.filter_list or ()):
        if f"filter '{entry.name}'" in message:
            return ("filter_list", index)
    return ("scorer",) if config.scorer is not None else ("metric_list",)


def _listed(config: EvalConfig, entry: FilterConfig) -> int:
    return len(entry.metric_list if entry.metric_list is not None else config.metric_list or ())


def _too_few(
    at: Location, metric: Metric, entry: FilterConfig, repeats: int | None, config: EvalConfig
) -> Iterator[Problem]:
    for reduction in metric.reductions:
        if repeats is not None and reduction.requires > repeats:
            samples = config.fewest_samples()
            remedy = "a log-likelihood is asked for once, so leave it out"
            if config.asked_type == "generate_until":
                remedy = (
                    f"raise sample_params.num_samples (now {samples})"
                    if repeats >= samples
                    else f"filter '{entry.name}' keeps {repeats} of {samples}, so let it keep more"
                )
            yield Problem(
                (*at, "reduction"),
                f"{reduction.name} of '{metric.name}' needs {reduction.requires} repeats of an item, and "
                f"{repeats} {'is' if repeats == 1 else 'are'} left; {remedy}",
            )


def _pointed(problem: Problem, arguments: Iterable[str], default: str) -> Problem:
    """The problem at the key that its message is about: an argument it quotes, else the kind it begins
    with.
    """
    places = {key: problem.message.find(f"'{key}'") for key in arguments}
    quoted = sorted(
        (place, key) for key, place in places.items() if place >= 0
    )  # before what was perhaps meant
    kind = problem.message.partition(" ")[0]
    key = quoted[0][1] if quoted else kind if kind in ("aggregation", "reduction") else default
    return problem._replace(location=(*problem.location, key))


def written(config: EvalConfig, overrides: Sequence[str] = ()) -> YamlSource:
    """The file that a config was read from, to name lines of it; one without lines if it is no longer
    there.
    """
    folder = Path(config.base_dir)
    if config.config_file is not None:
        try:
            return read_native(folder / config.config_file, overrides)[0]
        except NightjarError:
            pass  # moved or edited since: the message then names the key alone
    return YamlSource(config.config_file or f"config '{config.name}'", {})


def located_unfit(error: UnfitItem, config: EvalConfig, overrides: Sequence[str] = ()) -> str:
    """The error with the place in the config of the template that does not fit the item."""
    source = _told_apart(written(config, overrides), config)
    places = (source.where(at) for at, text in _texts(config) if text == error.template)
    where = next(places, None)
    return f"{where}: {error}" if where is not None else str(error)


def _told_apart(source: YamlSource, config: EvalConfig) -> YamlSource:
    """The source with templates that are not those of the file said to come from ``--set``."""
    changed = {
        at: f"{OVERRIDE} {'.'.join(map(str, at))}"
        for at, text in template_texts(config)
        if at in source.origins and value_at(source.data, at) != text
    }
    return YamlSource(source.name, source.data, {**source.origins, **changed})


def _texts(config: EvalConfig) -> Iterator[tuple[Location, str]]:
    from tasks.benchmarks.prompts import template_source

    yield from template_texts(config)
    for index, prompt in enumerate(config.prompt_templates or ()):
        if prompt.path is not None:
            yield ("prompt_templates", index, "path"), template_source(prompt, config.base_dir)


def _message(name: str, names: Iterable[str]) -> str:
    return (
        f"template variable '{name}' is in no item{nearest(name, names)} (known: {', '.join(sorted(names))})"
    )
