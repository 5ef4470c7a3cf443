"""What a run would ask, to be read before it is paid for: prompts, parameters, tokens, costs and hours.

Tokens of prompts are estimated by their characters from a sample of the items; those of answers are bounded
by ``max_tokens``. A conversation's later turns hold answers, and so lie between two estimates. Everything
here is made in memory and sends nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from flows.config.checks import item_places
from flows.graph.forecast import Forecast, TurnCount
from flows.plan.steps import Plan
from metrics.errors import NightjarError
from tasks.benchmarks.open import open_benchmark
from tasks.benchmarks.prompts import Template
from tasks.datasets.item import Item, Rendered
from tasks.infer import InferSetup
from tasks.messages.chat import chat_body, chat_text
from tasks.models.config import Prices
from tasks.models.limits.spending import cost_of
from tasks.models.providers.provider import AskedConfig
from tasks.rows.turns import spoken
from tasks.turns import TurnSetup

CHARACTERS_A_TOKEN: Final = 4
"""Of English text, in the tokenizers that are common; code and other scripts have fewer."""
MEASURED: Final = 200
"""Items whose prompts are measured."""


MEASURED_TALKS: Final = 20
"""Items whose conversations are measured, with answers as long as they may get."""


@dataclass(frozen=True)
class Preview:
    """Rendered requests of the first items, and what asking takes, by model and by model that speaks for
    users."""

    prompts: Sequence[Mapping[str, Any]]
    models: Mapping[str, Mapping[str, Any]]
    users: Mapping[str, Mapping[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        """As ``--dry-run --json`` prints it."""
        return {
            "prompts": list(self.prompts),
            "expected": dict(self.models),
            "expected_users": dict(self.users),
        }


def preview(plan: Plan, found: Forecast, first: int = 1) -> Preview:
    """The requests about the first ``first`` items with each prompt, and what the requests that ``found``
    counts take.

    Raises NightjarError for an item that can't be rendered.
    """
    benchmark = open_benchmark(plan.load.setup.benchmark)
    sample = list(islice(_spread(_items(plan), found.items), max(first, MEASURED)))
    head = list(islice(_items(plan), first))
    places = item_places(plan.config, head)
    prompts = [
        _shown(prompt, place, rendered)
        for prompt in plan.prompts
        for place, rendered in zip(places, benchmark.render(prompt, head), strict=True)
    ]
    measured = [entry for prompt in plan.prompts for entry in benchmark.render(prompt, sample)]
    generates = bool(measured) and measured[0].kind == "generate"
    user = [plan.user.setup] if plan.user is not None else []
    expected: list[dict[str, dict[str, Any]]] = []
    for setups in ([step.setup for step in plan.models.values()], user):
        own = {}
        for setup in setups:
            name, is_user = setup.model.name, setups is user
            counts = [turn for turn in found.turns if (turn.model, turn.is_user) == (name, is_user)]
            sizes = prompt_sizes(plan, measured, setup, is_user)
            own[name] = _expected(plan.config.prices, setup, counts, sizes, generates)
        expected.append(own)
    return Preview(prompts, *expected)


@dataclass(frozen=True)
class PromptSize:
    """Tokens of a request on average, estimated: with answers before it that say nothing, and with answers
    as long as ``max_tokens`` lets them be (None: as long as they like)."""

    least: float
    most: float | None


def prompt_sizes(
    plan: Plan, measured: Sequence[Rendered], setup: InferSetup, is_user: bool
) -> dict[int, PromptSize]:
    """The size of a turn's requests to a model, or to the one that speaks for the user, by the turn."""
    sizes = [sum(map(len, (*rendered.prompts, *rendered.continuations))) for rendered in measured]
    first = _tokens(sizes, sum(len(rendered.prompts) for rendered in measured))
    found = {1: PromptSize(first, first)}
    talks = measured[:: max(1, len(measured) // MEASURED_TALKS)] if plan.turns else ()
    speaking = [step.setup for step in plan.models.values()] if is_user else [setup]
    longest = [bound_of(one) for one in (*speaking, *([plan.user.setup] if plan.user is not None else []))]
    bound = None if None in longest else max((one for one in longest if one is not None), default=0)
    least = [_talk(plan, rendered, "", is_user) for rendered in talks]
    filler = "x" * (CHARACTERS_A_TOKEN * bound) if bound is not None else ""
    most = [_talk(plan, rendered, filler, is_user) for rendered in talks]
    for place, turn in enumerate(plan.turns):
        short, long = (_tokens([talk[place] for talk in talks], len(talks)) for talks in (least, most))
        found[turn.number] = PromptSize(short, None if bound is None else long)
    return found


def _talk(plan: Plan, rendered: Rendered, answer: str, is_user: bool) -> list[int]:
    """Characters of the prompts of the turns after the first, where every answer and reply is ``answer``."""
    body = chat_body(rendered.prompts[0])
    said, sizes = list(body["messages"]), []
    for turn in plan.turns:
        said.append({"role": "assistant", "content": answer})
        names = spoken(said, turn.number)
        if turn.ask is not None:
            asked = _written(turn.ask.setup, rendered.item, names)
            said.append({"role": "user", "content": answer})
        else:
            asked = ""
            text = _written(turn.say.setup, rendered.item, names) if turn.say.setup.role != "tool" else ""
            said.append({"role": turn.say.setup.role, "content": text})
        sizes.append(len(asked if is_user else chat_text(said, body.get("tools") or ())))
    return sizes


def _written(setup: TurnSetup, item: Item, names: Mapping[str, Any]) -> str:
    """What a template says to such an answer; nothing where it can't be written yet."""
    try:
        return Template(setup.template, "turns").text(item, names)
    except NightjarError:
        return ""


def _tokens(sizes: Sequence[int], requests: int) -> float:
    return sum(sizes) / requests / CHARACTERS_A_TOKEN if requests else 0.0


def bound_of(setup: InferSetup) -> int | None:
    """Tokens of an answer at most; None where nothing bounds them."""
    return setup.provider.longest_answer(setup.sampling)


def _items(plan: Plan) -> Iterator[Item]:
    setup = plan.load.setup
    return setup.selection.of(open_benchmark(setup.benchmark).items())


def _spread(items: Iterator[Item], count: int) -> Iterator[Item]:
    """As many items as are measured, from all over the dataset: prompts may grow with their place."""
    step = max(1, count // MEASURED)
    return (item for position, item in enumerate(items) if position % step == 0)


def _shown(prompt: str, place: str, rendered: Rendered) -> dict[str, Any]:
    """A rendered item as people read it: the messages, or the text; the choices; what is right."""
    text = rendered.prompts[0] if rendered.prompts else ""
    asked = chat_body(text) if rendered.chat else {"text": text}
    choices = [f"{choice}" for choice in rendered.continuations] if rendered.kind != "generate" else []
    return {
        "prompt": prompt,
        "item": rendered.item.item_id,
        "place": place,
        **asked,
        **({"continuations": choices} if choices else {}),
        "references": list(rendered.references),
    }


def _expected(
    prices: Prices,
    setup: InferSetup,
    turns: Sequence[TurnCount],
    sizes: Mapping[int, PromptSize],
    generates: bool,
) -> dict[str, Any]:
    model, sampling = setup.model, setup.sampling
    send = sum(turn.count.send or 0 for turn in turns)
    most = sum(turn.count.most or 0 for turn in turns)
    answer = (bound_of(setup) if generates else 0) if most else 0
    prompts = round(sum((turn.count.send or 0) * sizes[turn.turn].least for turn in turns))
    longest = [
        None if sizes[turn.turn].most is None else (turn.count.most or 0) * (sizes[turn.turn].most or 0.0)
        for turn in turns
        if turn.count.most
    ]
    prompts_most = None if None in longest else round(sum(size or 0.0 for size in longest))
    answers = None if answer is None else most * answer
    bounded = None not in (answers, prompts_most)
    price = prices.of(model.name)
    asked = model.config if isinstance(model.config, AskedConfig) else None
    beside = {name: getattr(asked, name) for name in ("api", "base_url") if hasattr(asked, name)}
    return {
        "requests": send,
        "requests_at_most": most,
        "parameters": {
            **sampling.sent(),
            "num_samples": sampling.num_samples,
            **({"seed": sampling.seed} if sampling.seed is not None else {}),
            **beside,
            **getattr(asked, "extra_body", {}),
        },
        "prompt_tokens": prompts,
        "prompt_tokens_at_most": prompts_most,
        "completion_tokens_at_most": answers,
        "cost_at_most": cost_of(prompts_most or 0, answers or 0, 0, price) if price and bounded else None,
        "hours_at_least": _hours(asked, send, prompts),
        "by_batch": model.by_batch,
    }


def _hours(endpoint: AskedConfig | None, send: int, tokens: int) -> float | None:
    """Hours that the configured rates alone take; None where none is configured."""
    if endpoint is None or not send:
        return None
    minutes = []
    if endpoint.requests_per_minute is not None:
        minutes.append(send / endpoint.requests_per_minute)
    if endpoint.tokens_per_minute is not None:
        minutes.append(tokens / endpoint.tokens_per_minute)
    return max(minutes) / 60 if minutes else None
