"""What a run would ask, to be read before it is paid for: prompts, parameters, tokens, costs and hours.

Tokens of prompts are estimated by their characters from a sample of the items; those of answers are bounded
by ``max_tokens``. Everything here is made in memory and sends nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from flows.config.schema import EvalConfig
from flows.plan.forecast import RequestCount
from flows.plan.steps import Plan
from tasks.benchmarks.open import open_benchmark
from tasks.benchmarks.records import Rendered
from tasks.datasets.item import Item
from tasks.messages.chat import chat_body
from tasks.models.config import EndpointConfig, ModelConfig
from tasks.models.options import cost_of

CHARACTERS_A_TOKEN: Final = 4
"""Of English text, in the tokenizers that are common; code and other scripts have fewer."""
MEASURED: Final = 200
"""Items whose prompts are measured."""


@dataclass(frozen=True)
class Preview:
    """Rendered requests of the first items, and what asking takes, by model."""

    prompts: Sequence[Mapping[str, Any]]
    models: Mapping[str, Mapping[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        """As ``--dry-run --json`` prints it."""
        return {"prompts": list(self.prompts), "expected": dict(self.models)}


def preview(plan: Plan, send: Mapping[str, RequestCount], count: int, first: int = 1) -> Preview:
    """The requests about the first ``first`` items with each prompt, and what the requests in ``send`` take.

    ``count`` is the number of items. Raises NightjarError for an item that can't be rendered.
    """
    benchmark = open_benchmark(plan.load.setup.benchmark)
    sample = list(islice(_spread(_items(plan), count), max(first, MEASURED)))
    head = list(islice(_items(plan), first))
    prompts = [
        _shown(prompt, rendered) for prompt in plan.prompts for rendered in benchmark.render(prompt, head)
    ]
    measured = [entry for prompt in plan.prompts for entry in benchmark.render(prompt, sample)]
    sizes = [_characters(entry) for entry in measured]
    requests = sum(len(entry.prompts) for entry in measured)
    mean = sum(sizes) / requests / CHARACTERS_A_TOKEN if requests else 0.0
    generates = bool(measured) and measured[0].kind == "generate"
    return Preview(
        prompts,
        {
            model.name: _expected(plan.config, model, send[model.name].send or 0, mean, generates)
            for model in plan.config.models
        },
    )


def _items(plan: Plan) -> Iterator[Item]:
    setup = plan.load.setup
    return setup.selection.of(open_benchmark(setup.benchmark).items())


def _spread(items: Iterator[Item], count: int) -> Iterator[Item]:
    """As many items as are measured, from all over the dataset: prompts may grow with their place."""
    step = max(1, count // MEASURED)
    return (item for position, item in enumerate(items) if position % step == 0)


def _shown(prompt: str, rendered: Rendered) -> dict[str, Any]:
    """A rendered item as people read it: the messages, or the text; the choices; what is right."""
    text = rendered.prompts[0] if rendered.prompts else ""
    asked = chat_body(text) if rendered.chat else {"text": text}
    choices = [f"{choice}" for choice in rendered.continuations] if rendered.kind != "generate" else []
    return {
        "prompt": prompt,
        "item": rendered.item.item_id,
        **asked,
        **({"continuations": choices} if choices else {}),
        "references": list(rendered.references),
    }


def _characters(rendered: Rendered) -> int:
    return sum(map(len, (*rendered.prompts, *rendered.continuations)))


def _expected(
    config: EvalConfig, model: ModelConfig, send: int, prompt_tokens: float, generates: bool
) -> dict[str, Any]:
    sampling = config.sampling(model)
    bound = sampling.max_completion_tokens or sampling.max_tokens
    answer = (bound if generates else 0) if send else 0
    prompts = round(send * prompt_tokens)
    answers = None if answer is None else send * answer
    price = config.prices.of(model.name)
    endpoint = model.config if isinstance(model.config, EndpointConfig) else None
    return {
        "requests": send,
        "parameters": {
            **sampling.sent(),
            "num_samples": sampling.num_samples,
            **({"seed": sampling.seed} if sampling.seed is not None else {}),
            **({"api": endpoint.api, "base_url": endpoint.base_url} if endpoint else {}),
            **(endpoint.extra_body if endpoint else {}),
        },
        "prompt_tokens": prompts,
        "completion_tokens_at_most": answers,
        "cost_at_most": cost_of(prompts, answers or 0, 0, price) if price and answers is not None else None,
        "hours_at_least": _hours(endpoint, send, prompts),
    }


def _hours(endpoint: EndpointConfig | None, send: int, tokens: int) -> float | None:
    """Hours that the configured rates alone take; None where none is configured."""
    if endpoint is None or not send:
        return None
    minutes = []
    if endpoint.requests_per_minute is not None:
        minutes.append(send / endpoint.requests_per_minute)
    if endpoint.tokens_per_minute is not None:
        minutes.append(tokens / endpoint.tokens_per_minute)
    return max(minutes) / 60 if minutes else None
