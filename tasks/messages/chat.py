"""A chat as one text: a list of messages, or an object of messages and the tools that they may call.

The text is what a request's key holds, so that a chat without tools is the list alone. Messages are in
OpenAI's form: a role, and a content that is a text or a list of parts.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, get_args

import orjson

Message = dict[str, Any]

Role = Literal["system", "developer", "user", "assistant", "tool"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
SYSTEM_ROLES: Final = ("system", "developer")
THOUGHTS: Final = "thoughts"
"""Key of an assistant's message in a chat that goes on: its signed thoughts, in its provider's own form."""


def chat_text(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
    """The chat as a prompt."""
    said = list(messages)
    return orjson.dumps({"messages": said, "tools": list(tools)} if tools else said).decode()


def chat_body(prompt: str, is_chat: bool = True) -> dict[str, Any]:
    """What of a chat prompt goes into a request's body: ``messages``, and ``tools`` where there are any. A
    prompt that is no chat is one message of the user's."""
    chat = orjson.loads(prompt) if is_chat else [{"role": "user", "content": prompt}]
    return chat if isinstance(chat, dict) else {"messages": chat}


def chat_messages(prompt: str) -> list[Message]:
    """The messages of a chat prompt."""
    messages: list[Message] = chat_body(prompt)["messages"]
    return messages


def chat_of(prompt: str) -> dict[str, Any]:
    """As ``chat_body``, for a prompt that may be a plain text: that is one message of the user's."""
    if prompt[:1] in ("[", "{"):
        try:
            chat = chat_body(prompt)
        except orjson.JSONDecodeError:
            chat = {}
        messages = chat.get("messages")
        if isinstance(messages, list) and all(isinstance(one, dict) and "role" in one for one in messages):
            return chat
    return chat_body(prompt, is_chat=False)


def content_text(content: Any) -> str:
    """The text of a message's content; of parts that hold no text nothing."""
    if isinstance(content, str) or content is None:
        return content or ""
    texts = (part.get("text") if isinstance(part, Mapping) else part for part in content)
    return "".join(text for text in texts if isinstance(text, str))


def checked_messages(value: Any) -> list[Message]:
    """Messages in OpenAI's form; raises ValueError saying which entry is none, and why."""
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"expected a list of messages, got {value!r:.60}")
    return [_message(entry, place) for place, entry in enumerate(value)]


def _message(entry: Any, place: int) -> Message:
    if not isinstance(entry, Mapping) or entry.get("role") not in ROLES:
        raise ValueError(
            f"message {place} is {entry!r:.60}; expected {{role: {' | '.join(ROLES)}, content: …}}"
        )
    content = entry.get("content")
    if content is None and not entry.get("tool_calls"):
        raise ValueError(f"message {place} ({entry['role']}) has no content")
    if isinstance(content, list):
        for part in content:
            _check_part(part, place)
    elif not isinstance(content, str | None):
        raise ValueError(
            f"the content of message {place} is {content!r:.60}; expected a text or a list of parts"
        )
    if entry["role"] == "tool" and not isinstance(entry.get("tool_call_id"), str):
        raise ValueError(f"message {place} has role tool and no tool_call_id")
    return dict(entry)


_PARTS: Final = {
    "text": ("text", None),
    "image_url": ("image_url", "url"),
    "input_audio": ("input_audio", "data"),
}


def _check_part(part: Any, place: int) -> None:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in _PARTS:
        name, inner = _PARTS[kind]
        held = part.get(name)
        text = held.get(inner) if inner is not None and isinstance(held, Mapping) else held
        if isinstance(text, str):
            return
    raise ValueError(
        f"a part of message {place} is {part!r:.60}; expected {{type: text, text: …}}, {{type: image_url, "
        "image_url: {url: …}} or {type: input_audio, input_audio: {data: …}}"
    )


def checked_tools(value: Any) -> list[dict[str, Any]]:
    """Tools in OpenAI's form; a function on its own (a name and its parameters) is put into it.

    Raises ValueError saying which entry is no tool.
    """
    if not isinstance(value, list | tuple):
        raise ValueError(f"expected a list of tools, got {value!r:.60}")
    return [_tool(entry, place) for place, entry in enumerate(value)]


def _tool(entry: Any, place: int) -> dict[str, Any]:
    bare = isinstance(entry, Mapping) and "name" in entry and "function" not in entry
    tool = {"type": "function", "function": dict(entry)} if bare else entry
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(
            f"tool {place} is no function: expected "
            f"{{type: function, function: {{name: …, parameters: …}}}}, got {entry!r:.60}"
        )
    return dict(tool)
