"""Cross rules of a benchmark's config: keys that need each other, and keys that exclude each other."""

from typing import TYPE_CHECKING

from pydantic import BaseModel

from tasks.benchmarks.errors import PlacedError

if TYPE_CHECKING:
    from tasks.benchmarks.config import BenchmarkFields, Location, Message, PromptTemplate


def exactly_one(config: BaseModel, keys: tuple[str, ...], owner: str) -> None:
    """Raises ValueError unless just one of ``keys`` is given."""
    found = [key for key in keys if getattr(config, key) is not None]
    if not found:
        raise ValueError(f"{owner} needs one of {', '.join(keys)}")
    if len(found) > 1:
        raise PlacedError(f"{owner} takes one of {', '.join(keys)}, not {' and '.join(found)}", found[-1])


def check_native(fields: "BenchmarkFields") -> None:
    """Raises PlacedError where the keys of a native benchmark do not go together."""
    if fields.dataset is None:
        raise PlacedError(
            "'dataset' is missing: a file of items, or a mapping with path, function or hub", "dataset"
        )
    rolling = fields.output_type == "loglikelihood_rolling"
    prompts = ("prompt_template", "prompt_templates", "messages")
    if rolling and fields.target is not None and fields.prompt_template:
        raise PlacedError(
            "a rolling log-likelihood has one document: in prompt_template or in target", "target"
        )
    if not (
        rolling and fields.target is not None and fields.prompt_templates is None and fields.messages is None
    ):
        exactly_one(fields, prompts, "a benchmark")
    if fields.prompt_templates is not None:
        _check_names(fields.prompt_templates)
    if fields.choices is None and fields.output_type == "multiple_choice":
        raise PlacedError(
            "output_type multiple_choice needs 'choices': a list, or a template of one", "output_type"
        )
    if fields.choices is not None and fields.output_type != "multiple_choice":
        raise PlacedError(
            f"belong to output_type multiple_choice, and this one is {fields.output_type}", "choices"
        )
    _check_chat(fields)
    for key in ("fewshot", "gen_prefix"):
        if rolling and getattr(fields, key) is not None:
            raise PlacedError(
                "a rolling log-likelihood is of the whole document, with nothing beside it", key
            )


def check_harness(fields: "BenchmarkFields") -> None:
    """Raises PlacedError where a benchmark of the harness is given keys that only native ones have."""
    native = (
        "dataset",
        "prompt_template",
        "prompt_templates",
        "messages",
        "system_prompt",
        "target",
        "choices",
        "fewshot",
    )
    for key in native:
        if getattr(fields, key) is not None:
            raise PlacedError(
                "is of native benchmarks; a benchmark of lm-evaluation-harness is changed by its own keys "
                "(doc_to_text, num_fewshot …)",
                key,
            )


def _check_names(prompts: "tuple[PromptTemplate, ...]") -> None:
    if not prompts:
        raise PlacedError("is empty: expected at least one prompt", "prompt_templates")
    names = [prompt.name for prompt in prompts]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise PlacedError(
                f"'{name}' is there twice; give each prompt a name of its own", "prompt_templates", index
            )


def _check_chat(fields: "BenchmarkFields") -> None:
    chats: dict[Location, tuple[Message, ...]] = {}
    if fields.messages is not None:
        chats["messages",] = fields.messages
    for index, prompt in enumerate(fields.prompt_templates or ()):
        if prompt.messages is not None:
            chats["prompt_templates", index, "messages"] = prompt.messages
    for at, messages in chats.items():
        if not messages:
            raise PlacedError("is empty: expected at least one turn", *at)
        if fields.output_type != "generate_until":
            raise PlacedError(
                f"{fields.output_type} asks for log-likelihoods of text; use prompt_template", *at
            )
        if fields.system_prompt is not None and any(message.role == "system" for message in messages):
            raise PlacedError(
                "there is a system message in messages already; give one of them", "system_prompt"
            )
    shape = fields.fewshot.format if fields.fewshot is not None else None
    if shape == "text" and chats:
        raise PlacedError(
            "text stands before a text prompt; messages take turns or message", "fewshot", "format"
        )
    if shape in ("turns", "message") and fields.output_type != "generate_until":
        raise PlacedError(
            f"{fields.output_type} asks for log-likelihoods of text; use format text", "fewshot", "format"
        )
