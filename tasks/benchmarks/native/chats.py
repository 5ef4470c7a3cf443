"""Native chats: the messages of a prompt, from templates of their parts or from a list that an item holds.

``CompiledChat`` renders the messages of an item; images and sounds among them are read and checked, and named
by their digests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.benchmarks.config import ContentPart, MessageTemplate
from tasks.benchmarks.native.templates import Template
from tasks.datasets.config import DatasetError
from tasks.datasets.item import Item
from tasks.messages.chat import Message, checked_messages
from tasks.messages.media import MediaError, MediaReader


@dataclass(frozen=True)
class _Part:
    """A part of a message: what it is, its template, and how closely an image is looked at."""

    kind: str
    template: Template
    detail: str | None


@dataclass(frozen=True)
class _Message:
    role: str
    content: Template | tuple[_Part, ...]
    beside: Mapping[str, Any]


class CompiledChat:
    """The messages of a prompt, compiled; ``label`` is what messages about them call it."""

    def __init__(
        self, messages: str | Sequence[MessageTemplate], label: str, reader: MediaReader | None = None
    ) -> None:
        self._reader = reader or MediaReader()
        self._label = label
        self._list = Template(messages, f"{label} (messages)") if isinstance(messages, str) else None
        self._messages = () if isinstance(messages, str) else tuple(self._compiled(one) for one in messages)

    def messages(self, item: Item) -> list[Message]:
        """The messages about an item in OpenAI's form; raises DataError naming the item."""
        try:
            if self._list is not None:
                return [self._read(one) for one in checked_messages(self._list.value(item))]
            return [
                {"role": one.role, "content": self._content(one.content, item), **one.beside}
                for one in self._messages
            ]
        except MediaError as error:
            raise DatasetError(f"item '{item.item_id}': {error}") from error
        except ValueError as error:
            if isinstance(error, DatasetError):
                raise
            raise DatasetError(f"{self._label} of item '{item.item_id}': {error}") from error

    @property
    def may_hold_media(self) -> bool:
        """Whether an item's messages may hold images or sounds: they are in files that may change."""
        return self._list is not None or any(
            part.kind != "text"
            for one in self._messages
            if isinstance(one.content, tuple)
            for part in one.content
        )

    def identity(self) -> list[Any]:
        """What of them decides prompts besides the items."""
        if self._list is not None:
            return [self._list.source]
        return [self._identity(one) for one in self._messages]

    def _identity(self, one: _Message) -> list[Any]:
        if isinstance(one.content, Template):
            return [one.role, one.content.source, *([dict(one.beside)] if one.beside else [])]
        parts = [[part.kind, part.template.source, part.detail] for part in one.content]
        return [one.role, parts, dict(one.beside)]

    def _compiled(self, message: MessageTemplate) -> _Message:
        label = f"{self._label} ({message.role})"
        if isinstance(message.content, str):
            return _Message(message.role, Template(message.content, label), message.beside())
        return _Message(message.role, tuple(_part(part, label) for part in message.content), message.beside())

    def _content(self, content: Template | tuple[_Part, ...], item: Item) -> Any:
        if isinstance(content, Template):
            return content.text(item)
        return [
            {"type": "text", "text": part.template.text(item)}
            if part.kind == "text"
            else self._reader.part(part.kind, part.template.value(item), part.detail)
            for part in content
        ]

    def _read(self, message: Message) -> Message:
        """A message of an item's own list, its media by their digests."""
        if not isinstance(message.get("content"), list):
            return message
        return {**message, "content": [self._read_part(part) for part in message["content"]]}

    def _read_part(self, part: Any) -> Any:
        if part["type"] == "image_url":
            image = part["image_url"]
            return self._reader.part("image", image["url"], image.get("detail"))
        return (
            self._reader.part("audio", part["input_audio"]["data"]) if part["type"] == "input_audio" else part
        )


def _part(part: ContentPart, label: str) -> _Part:
    kind, source = part.source()
    return _Part(kind, Template(source, f"{label}, {kind}"), part.detail)
