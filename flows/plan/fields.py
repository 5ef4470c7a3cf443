"""What a benchmark is opened from: the part of a config that decides its items and prompts."""

from pathlib import Path

from flows.config.schema import EvalConfig
from metrics.errors import ConfigError
from tasks.benchmarks.config import BenchmarkFields
from tasks.benchmarks.lettered import CHAT_TEMPLATE, TEXT_TEMPLATE
from tasks.models.providers.provider import provider_of


def benchmark_fields(config: EvalConfig) -> BenchmarkFields:
    """The part of the config that benchmarks are opened from.

    A harness benchmark is rendered as chat turns where all its models are asked by the chat API: there the
    harness wants its --apply_chat_template, and this is the same.
    """
    fields = _with_tokenizer(
        BenchmarkFields.model_validate(config.model_dump(include=set(BenchmarkFields.model_fields))), config
    )
    providers = [provider_of(model, Path(config.base_dir)) for model in config.models]
    asked = [provider for provider in providers if provider.asks]
    fields = _with_letters(fields, config)
    if fields.harness is None or config.asked_type != "generate_until" or not asked:
        return fields
    chat = all(provider.takes_chats for provider in asked)
    chat = chat or bool(fields.harness.get("apply_chat_template"))
    return fields.model_copy(update={"harness": {**fields.harness, "apply_chat_template": chat}})


def _with_letters(fields: BenchmarkFields, config: EvalConfig) -> BenchmarkFields:
    """The fields with the number of orders that choices are asked in, and the template that the models take:
    a chat is told how to reply, a completion begun. Raises ConfigError."""
    asking = fields.choices_by
    if asking is None or not fields.asks_letters:
        return fields.model_copy(update={"choices_by": None})
    samples = max((config.sampling(model).num_samples for model in config.models), default=1)
    permutations = asking.permutations or samples
    together = [model.name for model in config.models if (config.sampling(model).n or 1) > 1]
    if together and permutations > 1:
        raise ConfigError(
            f"sample_params.n of model '{together[0]}': answers of one request share their prompt, and "
            "choices_by asks each sample with another order; leave n out, or set choices_by.permutations: 1"
        )
    chats = [provider_of(model, Path(config.base_dir)).takes_chats for model in config.models]
    default = TEXT_TEMPLATE if chats and not any(chats) else CHAT_TEMPLATE
    decided = asking.model_copy(update={"permutations": permutations, "template": asking.template or default})
    harness = fields.harness
    if harness is not None:
        harness = {**harness, "choices_by": decided.model_dump(mode="json", exclude={"ask", "coverage"})}
    return fields.model_copy(update={"choices_by": decided, "harness": harness})


def _with_tokenizer(fields: BenchmarkFields, config: EvalConfig) -> BenchmarkFields:
    """A harness benchmark that makes its documents itself is told the tokenizer of its models, as there:
    RULER's texts have a length in tokens. Models with different ones can't have the same documents."""
    if fields.harness is None or "custom_dataset" not in (fields.harness.get("config") or {}):
        return fields
    names = {model.tokenizer for model in config.models if model.tokenizer is not None}
    if len(names) > 1:
        raise ConfigError(
            f"benchmark '{config.name}' makes documents of a length in tokens, and its models have the "
            f"tokenizers {', '.join(sorted(names))}; evaluate them one by one"
        )
    return fields.model_copy(update={"harness": {**fields.harness, "tokenizer": next(iter(names), None)}})
