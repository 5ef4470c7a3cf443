"""Prompts of recorded responses: where rows say their prompt in ``metadata.prompt_template`` alone, as the
two-phase framework writes it, the benchmark's prompts go by what the rows say.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from flows.config.schema import EvalConfig
from metrics.errors import NightjarError
from metrics.names import check_name
from tasks.benchmarks.config import DEFAULT_PROMPT, PromptTemplate
from tasks.benchmarks.prompts import template_source
from tasks.models.config import ModelConfig
from tasks.models.providers.provider import provider_of
from tasks.models.providers.recordings import recording_file, says_prompts_in_metadata
from tasks.models.providers.replay import ReplayConfig

SHOWN: Final = 60
"""Characters of a template whose text stands in for its name."""


def with_recorded_prompts(config: EvalConfig) -> EvalConfig:
    """The config with a prompt for each that its recorded responses name in their metadata.

    A benchmark with one prompt, which has no name, takes the names from there. Of several prompts those whose
    text is what a row says are joined with such rows. Nothing changes where a model is asked, or where a
    file has prompt_template in its rows.
    """
    recorded = _recorded_prompts(config)
    if not recorded:
        return config
    if config.prompt_templates is None:
        names = _names(recorded)
        if list(names) == [DEFAULT_PROMPT]:
            return config
        [only] = config.prompts()
        prompts = tuple(only.model_copy(update={"name": name}) for name in names)
        changed = {"prompt_templates": prompts, "prompt_template": None, "messages": None}
        return config.model_copy(update=changed | {"models": _joined(config.models, names)})
    texts = {_text(prompt, config.base_dir): prompt.name for prompt in config.prompt_templates}
    named = {texts[value]: value for value in recorded if value in texts}
    named |= {prompt.name: prompt.name for prompt in config.prompt_templates if prompt.name in recorded}
    return config.model_copy(update={"models": _joined(config.models, named)})


def _recorded_prompts(config: EvalConfig) -> Sequence[str]:
    """The distinct prompts that the rows of all recordings name in their metadata alone, in their order; none
    where a model is no recording of a file, or its rows say nothing or say it elsewhere."""
    found: dict[str, None] = {}
    if config.harness is not None or not config.models:
        return ()
    for model in config.models:
        path = provider_of(model, Path(config.base_dir)).recording
        if path is None:
            return ()
        with suppress(NightjarError, os.error):  # said when a response is looked up
            if says_prompts_in_metadata(path):
                found |= dict.fromkeys(recording_file(path).metadata_prompts)
    return list(found)


def _names(recorded: Sequence[str]) -> dict[str, str]:
    """A name for each recorded prompt: itself, or the beginning of a text that is too long for a name."""
    names: dict[str, str] = {}
    for value in recorded:
        name = value if _can_be_name(value) else _beginning(value)
        number = 2
        while name in names:
            name, number = f"{_beginning(value)} ({number})", number + 1
        names[name] = value
    return names


def _can_be_name(value: str) -> bool:
    with suppress(ValueError):
        return check_name(value) == value
    return False


def _beginning(text: str) -> str:
    line = " ".join(text.split())
    shortened = line if len(line) <= SHOWN else line[:SHOWN] + "…"
    return shortened if _can_be_name(shortened) else "template"


def _text(prompt: PromptTemplate, base_dir: str) -> str:
    return template_source(prompt, base_dir) if prompt.messages is None else ""


def _joined(models: Sequence[ModelConfig], names: Mapping[str, str]) -> tuple[ModelConfig, ...]:
    """The models, each with what its rows call the prompts: a file of one prompt answers no other that is
    known."""
    return tuple(
        model.model_copy(update={"config": model.config.model_copy(update={"prompts": dict(names)})})
        if isinstance(model.config, ReplayConfig)
        else model
        for model in models
    )
