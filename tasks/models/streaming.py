"""Server-sent events put together into the body that the same call gives without streaming."""

from typing import Any

from tasks.models.bodies import joined, json_object
from tasks.models.errors import MalformedBody, ServerFault

TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


class Assembly:
    """Collects the events of one streamed answer."""

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._done = False

    def add(self, data: bytes) -> None:
        """Takes the data of one event; raises MalformedBody, or ServerFault for an error sent as an event."""
        if data == b"[DONE]":
            self._done = True
            return
        if not data:
            return
        event = json_object(data, "an event of the stream")
        if event.get("error"):
            raise ServerFault(f"the stream broke off: {event['error']}")
        self._head.update(
            (name, value) for name, value in event.items() if name != "choices" and value is not None
        )
        choices = event.get("choices") or []
        if not isinstance(choices, list):
            raise MalformedBody("an event of the stream has no list of choices")
        for choice in choices:
            self._extend(choice)

    def body(self) -> dict[str, Any]:
        """The whole answer; raises MalformedBody when the stream ended before it did."""
        finished = self._choices and all(choice.get("finish_reason") for choice in self._choices.values())
        if not (self._done or finished) or not self._choices:
            raise MalformedBody("the stream ended before the answer did")
        choices = [choice for _, choice in sorted(self._choices.items())]
        for choice in choices:
            for part in (choice, choice.get("message") or {}):
                part.update(
                    {name: "".join(value) for name, value in part.items() if isinstance(value, _Text)}
                )
        return {**self._head, "choices": choices}

    def _extend(self, piece: Any) -> None:
        index = (piece.get("index") or 0) if isinstance(piece, dict) else None
        if not isinstance(index, int):
            raise MalformedBody("a choice in an event of the stream is not a JSON object with a number")
        choice = self._choices.setdefault(index, {"index": index, "finish_reason": None})
        choice["finish_reason"] = piece.get("finish_reason") or choice["finish_reason"]
        if isinstance(delta := piece.get("delta"), dict):
            message = choice.setdefault("message", {"content": None})
            for name in TEXTS:
                text = delta.get(name)
                if isinstance(text, str | list):
                    _append(message, name, text if isinstance(text, str) else joined(text))
            if isinstance(delta.get("tool_calls"), list):
                message.setdefault("tool_calls", []).extend(delta["tool_calls"])
        elif isinstance(piece.get("text"), str):
            _append(choice, "text", piece["text"])
        if isinstance(logprobs := piece.get("logprobs"), dict):
            kept = choice.setdefault("logprobs", {})
            for name, values in logprobs.items():
                if isinstance(values, list):
                    kept.setdefault(name, []).extend(values)


class _Text(list[str]):
    """Pieces of a text, joined once at the end."""


def _append(target: dict[str, Any], name: str, text: str) -> None:
    pieces = target.get(name)
    if not isinstance(pieces, _Text):
        pieces = target[name] = _Text()
    pieces.append(text)
