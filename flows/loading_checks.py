"""Names and functions that a config mentions, checked before anything starts: what a schema can't know."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from flows.config import EvalConfig
from flows.schema_errors import Problem, refused
from flows.scoring_checks import asked_model_problems, filter_problems, metric_problems, scorer_problems
from flows.yaml_source import Location
from metrics.errors import NightjarError
from tasks.benchmarks.config import PromptTemplate, template_texts
from tasks.datasets import check_source
from tasks.usercode import Resolve, resolver

METHOD_KEYWORDS = ("response", "ground_truth", "inference_result")
EVALUATION_METRIC_KEYWORDS = ("evaluation_results", "facets")


def config_problems(config: EvalConfig) -> list[Problem]:
    """Everything in a valid config that names what does not exist or does not fit. Imports the user's
    functions.

    Filters and metrics are looked at one by one, so that each mistake has its line; what only shows when
    the scorer is built is looked at last.
    """
    resolve = resolver(config.base_dir)
    checks = (_templates, _dataset, _functions, filter_problems, metric_problems, asked_model_problems)
    found = [problem for check in checks for problem in check(config, resolve)]
    return found or list(scorer_problems(config, resolve))


def _templates(config: EvalConfig, resolve: Resolve) -> Iterator[Problem]:
    if config.harness is not None:
        return
    from tasks.benchmarks.native.templates import check_syntax

    for location, text in template_texts(config):
        yield from refused(location, partial(check_syntax, text))
    for index, prompt in enumerate(config.prompt_templates or ()):
        if prompt.path is not None:
            yield from refused(
                ("prompt_templates", index, "path"), partial(_check_file, prompt, config.base_dir)
            )


def _check_file(prompt: PromptTemplate, base_dir: str) -> None:
    from tasks.benchmarks.native.templates import check_syntax, template_source

    check_syntax(template_source(prompt, base_dir))


def _dataset(config: EvalConfig, resolve: Resolve) -> Iterator[Problem]:
    dataset = config.dataset
    if dataset is not None:
        yield from refused(("dataset", "function"), partial(check_source, dataset, config.base_dir))


def _functions(config: EvalConfig, resolve: Resolve) -> Iterator[Problem]:
    if config.process_results is not None:
        yield from _callable(("process_results",), config.process_results, ("doc", "results"), resolve)
    for index, method in enumerate(config.evaluation_methods):
        if method.function is not None:
            taken = (*METHOD_KEYWORDS, *method.params)
            yield from _callable(("evaluation_methods", index, "function"), method.function, taken, resolve)
    for index, metric in enumerate(config.metrics):
        if metric.function is not None:
            taken = (*EVALUATION_METRIC_KEYWORDS, *metric.params)
            yield from _callable(("metrics", index, "function"), metric.function, taken, resolve)


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
