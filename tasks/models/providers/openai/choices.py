"""Which choice of a reply answers which request: their ``index`` says it, not their order."""

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.models.errors import BadRequest, MalformedBody
from tasks.models.wire import bare_error


def ordered_choices(body: Mapping[str, Any], asked: int, alike: bool = False) -> Sequence[Mapping[str, Any]]:
    """The choices of a reply to ``asked`` prompts, in the order of the prompts.

    A choice alone need not have an index, nor need samples of one prompt (``alike``). Raises MalformedBody
    where there are fewer or more choices, or one whose index was not asked for, BadRequest where the one
    sample is there that an endpoint without ``n`` gives, and what an error in their place stands for.
    """
    choices = body.get("choices")
    if fault := bare_error(body):
        raise fault
    if alike and isinstance(choices, list) and len(choices) == 1 < asked:
        raise BadRequest(f"the endpoint gives one answer to a request for {asked}; leave sample_params.n out")
    if not isinstance(choices, list) or len(choices) != asked:
        got = len(choices) if isinstance(choices, list) else "no list of"
        raise MalformedBody(f"the answer has {got} choices where {asked} were asked for")
    if not all(isinstance(choice, Mapping) for choice in choices):
        raise MalformedBody("a choice of the answer is not a JSON object")
    indexes = [choice.get("index") for choice in choices]
    if (alike or asked == 1) and all(index is None for index in indexes):
        return choices
    counts = [index for index in indexes if isinstance(index, int) and not isinstance(index, bool)]
    if sorted(counts) != list(range(asked)):
        told = ", ".join(map(str, indexes[:8])) + (" …" if asked > 8 else "")
        raise MalformedBody(
            f"the choices of the answer have the index {told} where 0 to {asked - 1} were asked for"
        )
    return sorted(choices, key=lambda choice: choice["index"])
