"""The calls of tools that a model makes: read from a message, put together from a stream, kept as JSON text.

A call is kept as ``{"name": …, "arguments": …}``, its arguments as the text that the model wrote, valid JSON
or not. Ids are left out: servers draw them at random, and equal answers of two nights are to be equal; a chat
that goes on names the calls of a turn by their places (``call_id``), and is sent with ``distinct_ids``.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any, Final

import orjson

from tasks.messages.chat import Message

Call = dict[str, Any]


def calls_of(message: Mapping[str, Any]) -> list[Call]:
    """The calls that a message of OpenAI's form makes, in order; also the older ``function_call``.

    Raises ValueError for something in their place that is no call.
    """
    made = message.get("tool_calls")
    if not made and message.get("function_call"):
        made = [{"function": message["function_call"]}]
    if made is None:
        return []
    if not isinstance(made, list):
        raise ValueError("a message's tool_calls are no list")
    return [_call(entry) for entry in made]


def _call(entry: Any) -> Call:
    function = entry.get("function") if isinstance(entry, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ValueError("a tool call names no function")
    name = function["name"]
    arguments = function.get("arguments")
    if isinstance(arguments, Mapping | list):  # some servers send the value itself
        arguments = orjson.dumps(arguments).decode()
    if not isinstance(arguments, str | None):
        raise ValueError(f"the arguments of the call of {name!r} are neither text nor an object")
    return {"name": name, "arguments": arguments or ""}


def recorded_calls(value: Any) -> list[Call]:
    """Calls as files hold them: in OpenAI's form, or ``{name, arguments}`` alone; raises ValueError."""
    entries = value if isinstance(value, list) else []
    bare = [isinstance(entry, Mapping) and "name" in entry for entry in entries]
    made = [{"function": entry} if alone else entry for entry, alone in zip(entries, bare, strict=True)]
    return calls_of({"tool_calls": made})


def merged_pieces(pieces: Sequence[Any]) -> list[dict[str, Any]]:
    """The calls that the pieces of a stream make together, as they come without streaming.

    A piece belongs to the call of its index, in whatever order calls begin. One that names a function under
    another id begins a call of its own, whatever its index (some servers number all of them 0); without a
    name it goes on (some draw an id for each piece). One without an index goes on with the last. Raises
    ValueError.

    >>> merged_pieces([{"index": 0, "function": {"name": "f", "arguments": "{"}},
    ...                {"index": 0, "function": {"arguments": "}"}}])
    [{'type': 'function', 'function': {'name': 'f', 'arguments': '{}'}}]
    """
    merged: list[dict[str, Any]] = []
    places: list[int] = []
    by_index: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        if not isinstance(piece, Mapping):
            raise ValueError("a piece of a tool call is no JSON object")
        index, identity = piece.get("index"), piece.get("id")
        found = by_index.get(index) if isinstance(index, int) else (merged[-1] if merged else None)
        is_other = identity and found is not None and found.get("id") not in (None, identity)
        if found is None or (is_other and _names_function(piece)):
            found = {"type": "function", "function": {"name": "", "arguments": ""}}
            merged.append(found)
            places.append(index if isinstance(index, int) else len(places))
            if isinstance(index, int):
                by_index[index] = found
        if identity:
            found["id"] = identity
        _extend(found["function"], piece.get("function"))
    return [merged[at] for at in sorted(range(len(merged)), key=places.__getitem__)]


def _names_function(piece: Mapping[str, Any]) -> bool:
    function = piece.get("function")
    return isinstance(function, Mapping) and bool(function.get("name"))


def _extend(function: dict[str, Any], piece: Any) -> None:
    if piece is None:
        return
    if not isinstance(piece, Mapping):
        raise ValueError("the function of a tool call is no JSON object")
    name, arguments = piece.get("name"), piece.get("arguments")
    if isinstance(name, str) and name != function["name"]:  # some servers repeat it in every piece
        function["name"] += name
    if isinstance(arguments, str) and isinstance(function["arguments"], str):
        function["arguments"] += arguments
    elif arguments is not None:
        function["arguments"] = arguments


def calls_text(calls: Sequence[Call]) -> str | None:
    """Calls as the JSON text that is kept; None where there are none."""
    return orjson.dumps(list(calls)).decode() if calls else None


def parsed_calls(text: str | None) -> list[Call]:
    """Kept calls with their arguments as values; arguments that are no JSON object stay the text they are.

    >>> parsed_calls('[{"name": "f", "arguments": "{\\\\"x\\\\": 1}"}, {"name": "g", "arguments": "{"}]')
    [{'name': 'f', 'arguments': {'x': 1}}, {'name': 'g', 'arguments': '{'}]
    """
    if text is None:
        return []
    return [{**call, "arguments": call_arguments(call["arguments"])} for call in orjson.loads(text)]


def call_arguments(arguments: str) -> Any:
    """A call's arguments as an object; as the text they are where they are none."""
    if not arguments.strip():
        return {}
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    return value if isinstance(value, dict) else arguments


def call_id(place: int) -> str:
    """What a chat that goes on calls the call at this place, from 0."""
    return f"call_{place}"


_PLACE: Final = re.compile(r"call_\d+")


def numbered_ids(name: str) -> Iterator[str]:
    """What a call may be named instead of an id that another one has."""
    return chain([name], (f"{name}_{number}" for number in count(2)))


def nine_characters(name: str) -> Iterator[str]:
    """As ``numbered_ids``, and instead of an id that ``call_id`` gave: nine letters and digits, as Mistral's
    API takes them alone."""
    others = (f"call{number:05}" for number in count())
    return others if _PLACE.fullmatch(name) else chain([name], others)


def distinct_ids(
    messages: Iterable[Message], names: Callable[[str], Iterator[str]] = numbered_ids
) -> Iterator[Message]:
    """The messages with an id of its own for each call, the first of its ``names`` that is free.

    Ids count from 0 in each turn of a chat, and an API takes none twice. A result belongs to the last call of
    its id.
    """
    taken: set[str] = set()
    named: dict[str, str] = {}

    def renamed(call: Any) -> Any:
        if not isinstance(call, Mapping) or not isinstance(call.get("id"), str):
            return call
        own = next(name for name in names(call["id"]) if name not in taken)
        taken.add(own)
        named[call["id"]] = own
        return {**call, "id": own}

    for message in messages:
        if isinstance(calls := message.get("tool_calls"), list):
            yield {**message, "tool_calls": [renamed(call) for call in calls]}
        elif message["role"] == "tool" and message["tool_call_id"] in named:
            yield {**message, "tool_call_id": named[message["tool_call_id"]]}
        else:
            yield message


def said_calls(text: str | None) -> list[dict[str, Any]]:
    """Kept calls in OpenAI's form, as the assistant's message of a chat that goes on holds them."""
    return [
        {"id": call_id(place), "type": "function", "function": call}
        for place, call in enumerate(orjson.loads(text) if text is not None else [])
    ]
