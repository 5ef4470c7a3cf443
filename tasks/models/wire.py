"""How a provider's replies are read: what a status stands for, the JSON object in a body, and the events of a
stream put together into the body that the same call gives without streaming.

A provider whose protocol is not OpenAI's says by a ``Wire`` how its own are read. Nothing here opens a
connection: ``http.py`` does.
"""

import codecs
import email.utils
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import orjson

from tasks.messages.calls import merged_pieces
from tasks.messages.chat import content_text
from tasks.models.errors import (
    FILTERED,
    AccessDenied,
    BadRequest,
    ContentFiltered,
    ContextTooLong,
    MalformedBody,
    NotServed,
    Overloaded,
    RateLimited,
    RequestError,
    RequestTimeout,
    ServerFault,
    shortened,
)
from tasks.models.limits.allowances import duration, finite_number, told_wait

T = TypeVar("T")


@dataclass(frozen=True)
class ModelListing:
    """What an endpoint says when it is asked for its models: what it lists, by name, and the reply's
    headers."""

    entries: Mapping[str, Mapping[str, Any]]
    headers: Mapping[str, str]


class EventLines:
    """The data of a stream's events. A line ends in LF, CR LF or CR, and the lines of an event are joined, as
    server-sent events have it; where a line is whole by itself, the server has left out what ends an event.
    An event named ``error``, and llama.cpp's lines ``error: …``, become objects with the key ``error``.
    """

    media_type: ClassVar[str] = "text/event-stream"

    def __init__(self) -> None:
        self._open: list[bytes] = []
        """What came of the line that has not ended."""
        self._event: list[bytes] = []
        """Lines of data of the event that has not ended."""
        self._is_error = False
        """Whether that event is named so."""
        self._ended_in_cr = False

    def add(self, piece: bytes) -> Iterator[bytes]:
        """The data of the events that this piece of the stream ends."""
        if not piece:
            return
        if self._ended_in_cr:
            piece = piece.removeprefix(b"\n")
        self._ended_in_cr = piece.endswith(b"\r")
        *ended, rest = re.split(rb"\r\n|\r|\n", piece)
        for line in ended:
            yield from self._end_line(line)
        self._open.append(rest)

    def rest(self) -> Iterator[bytes]:
        """The data of a last event that does not end."""
        yield from self._end_line(b"")
        yield from self._end_line(b"")

    def _end_line(self, last: bytes) -> Iterator[bytes]:
        line = b"".join((*self._open, last)).removeprefix(codecs.BOM_UTF8)
        self._open = []
        if line.startswith(b"data:"):
            self._event.append(line[5:].strip())
        elif line.startswith(b"error:"):
            yield _as_error(line[6:].strip())
        elif line.startswith(b"event:"):
            self._is_error |= line[6:].strip() == b"error"
        elif not line:
            lines, self._event = self._event, []
            is_error, self._is_error = self._is_error, False
            whole = lines if len(lines) < 2 or _is_whole(lines[0]) else [b"\n".join(lines)]
            yield from map(_as_error, whole) if is_error else whole


def holds_events(content: bytes) -> bool:
    """Whether a body is server-sent events, which some proxies send under another type: no JSON begins so.

    >>> holds_events(b"data: {}"), holds_events(b'{"data": 1}')
    (True, False)
    """
    begins = content[:1_000].removeprefix(codecs.BOM_UTF8).lstrip()
    return begins.startswith((b"data:", b"event:", b"error:", b"id:", b"retry:", b":"))


def holds_object(content: bytes) -> bool:
    """Whether a body begins as a JSON object, which some servers send under the type of events: no line of an
    event begins so.

    >>> holds_object(b' {"choices": []}'), holds_object(b"data: {}")
    (True, False)
    """
    return content.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{")


def _as_error(data: bytes) -> bytes:
    """The data of an event that is an error, said so in the data."""
    try:
        told = orjson.loads(data)
    except orjson.JSONDecodeError:
        told = data.decode("utf-8", "replace")
    is_told = data == b"[DONE]" or (isinstance(told, dict) and told.get("error"))
    return data if is_told else orjson.dumps({"error": told or "no message"})


def _is_whole(data: bytes) -> bool:
    try:
        return data == b"[DONE]" or isinstance(orjson.loads(data), dict)
    except orjson.JSONDecodeError:
        return False


TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


def thinking_text(content: Any) -> str | None:
    """The thought in a message's content: its parts of the type ``thinking``, as Mistral sends them."""
    parts = content if isinstance(content, list) else ()
    thoughts = (part for part in parts if isinstance(part, Mapping) and part.get("type") == "thinking")
    return "".join(content_text(part.get("thinking")) for part in thoughts) or None


class StreamedAnswer:
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
        event = event_object(data)
        if fault := body_error(event) or bare_error(event):
            raise fault
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
            _merge_calls(choice.get("message") or {})
        return mended({**self._head, "choices": choices})

    def _extend(self, piece: Any) -> None:
        index = (piece.get("index") or 0) if isinstance(piece, dict) else None
        if not isinstance(index, int) or isinstance(index, bool):
            raise MalformedBody("a choice in an event of the stream is not a JSON object with a number")
        choice = self._choices.setdefault(index, {"index": index, "finish_reason": None})
        for name in ("finish_reason", "error"):
            if piece.get(name):
                choice[name] = piece[name]
        if isinstance(delta := piece.get("delta"), dict):
            message = choice.setdefault("message", {"content": None})
            for name in TEXTS:
                text = delta.get(name)
                if isinstance(text, str | list):
                    _append(message, name, text if isinstance(text, str) else content_text(text))
            if thought := thinking_text(delta.get("content")):
                _append(message, "reasoning_content", thought)
            if isinstance(delta.get("tool_calls"), list):
                message.setdefault("tool_calls", []).extend(delta["tool_calls"])
            if delta.get("function_call"):
                message.setdefault("function_call", []).append(
                    {"index": 0, "function": delta["function_call"]}
                )
        elif isinstance(piece.get("text"), str):
            _append(choice, "text", piece["text"])
        if isinstance(logprobs := piece.get("logprobs"), dict):
            lists = choice.setdefault("logprobs", {})
            for name, values in logprobs.items():
                if isinstance(values, list):
                    lists.setdefault(name, []).extend(values)


def _merge_calls(message: dict[str, Any]) -> None:
    try:
        if "tool_calls" in message:
            message["tool_calls"] = merged_pieces(message["tool_calls"])
        if "function_call" in message:
            message["function_call"] = merged_pieces(message["function_call"])[0]["function"]
    except ValueError as error:
        raise MalformedBody(str(error)) from error


class _Text(list[str]):
    """Pieces of a text, joined once at the end."""


def _append(target: dict[str, Any], name: str, text: str) -> None:
    pieces = target.get(name)
    if not isinstance(pieces, _Text):
        pieces = target[name] = _Text()
    pieces.append(text)


def unreadable(error: Exception) -> MalformedBody:
    """A reply that something in its reading gave up on, as one malformed answer."""
    return MalformedBody(f"the answer can't be read ({type(error).__name__}: {shortened(str(error))})")


def answer_body(content: bytes) -> dict[str, Any]:
    """The body of an answer; raises MalformedBody, and what an error inside it stands for: some servers send
    one with status 200, choices or not.
    """
    body = json_object(content)
    if fault := body_error(body):
        raise fault
    return body


def body_error(body: Mapping[str, Any]) -> RequestError | None:
    """The error inside a body that came with status 200, or inside one of its choices; None: there is
    none."""
    if not body.get("error"):
        return None
    error = _error_in(mended(body))
    text = f"an error with status 200: {error.text}"
    return _content_filtered(text) if _is_refusal(error) else ServerFault(text)


def bare_error(body: Mapping[str, Any]) -> RequestError | None:
    """The error that a body, or an event of a stream, is by itself, as FastChat, FastAPI and older servers of
    vLLM send one."""
    failed = body.get("code") not in (None, 0, 200, "0", "200") and body.get("message")
    is_error = body.get("object") == "error" or body.get("error_code") or failed or set(body) == {"detail"}
    return body_error({"error": body}) if is_error and "choices" not in body else None


def json_object(content: bytes, what: str = "the answer's body", is_event: bool = False) -> dict[str, Any]:
    """The JSON object in ``content``; raises MalformedBody where there is none.

    Lone surrogates, left of an emoji that was cut in two, become question marks: UTF-8 can't hold them. In an
    event of a stream they stay, since the next event may have the other half; what is put together of events
    is to be ``mended``. NaN and infinities, which Python's servers write for an impossible token, are read.
    """
    if not content.strip():
        raise MalformedBody(f"{what} is empty")
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            raise MalformedBody(f"{what} is not JSON ({error})") from error
        value = value if is_event else mended(value)
    if not isinstance(value, dict):
        raise MalformedBody(f"{what} is not a JSON object")
    return value


def event_object(data: bytes) -> dict[str, Any]:
    """The JSON object of one event of a stream; raises MalformedBody where there is none."""
    return json_object(data, "an event of the stream", is_event=True)


def mended(value: T) -> T:
    """A JSON value with halves of a character joined where both came, and question marks where not. Raises
    MalformedBody."""
    try:
        orjson.dumps(value)
        return value
    except TypeError:
        pass
    try:
        joined: T = json.loads(json.dumps(value))
        replaced: T = json.loads(json.dumps(joined, ensure_ascii=False).encode("utf-8", "replace"))
    except RecursionError as error:
        raise MalformedBody("the answer is nested too deeply") from error
    return replaced


_too_long = re.compile(
    r"context.{0,20}(?:length|window)|too (?:long|many tokens)|maximum.{0,20}tokens|max_model_len",
    re.IGNORECASE,
)
_filter = re.compile(
    r"content.{0,12}(?:filter|policy|management)|responsible.?ai|moderation|data_inspection|flagged_input",
    re.IGNORECASE,
)
_filtered = re.compile(r"filtered|flag|block|reject|refus|violat|trigger|inappropriate", re.IGNORECASE)
_quoted = re.compile(r"(?<!\w)(['\"]).*?\1(?!\w)", re.DOTALL)
"""What an error quotes may be of the prompt."""


@dataclass(frozen=True)
class ErrorBody:
    """What the body of an error says: ``text`` for people, ``codes``, and ``message``, the words of the
    provider itself. Pages of firewalls and lists of details have none: they may say or repeat anything.
    """

    text: str
    codes: str = ""
    message: str = ""


def _is_refusal(error: ErrorBody) -> bool:
    """Whether an error is the provider's refusal: by its code, else by words that say both what and that."""
    said = _quoted.sub("", error.message)
    return bool(_filter.search(error.codes) or (_filter.search(said) and _filtered.search(said)))


_no_quota = re.compile(r"insufficient_quota|\bbilling_|exceeded your current quota", re.IGNORECASE)
_spent_today = re.compile(r'"quotaId":\s*"[^"]*PerDay')
"""How Google names a quota that is there again on the next day, whatever delay stands beside it."""
_delay = re.compile(
    r'"retryDelay":\s*"([0-9.]+s)"|(?:try again|retry) (?:in|after) ((?:[0-9.]*[0-9](?:ms|[hms](?![a-z])))+|'
    r"[0-9.]+(?= ?sec))",
    re.IGNORECASE,
)
"""How long to wait, in a body: as Google says it, and as OpenAI and Azure put it into words."""


def status_error(status: int, content: bytes, headers: Mapping[str, str]) -> RequestError:
    """The error of the tree that a reply with this HTTP status stands for."""
    error = _error_body(content)
    text = f"HTTP {status}: {error.text}"
    told = f"{error.codes} {error.text}"
    if status == 429:
        return _rate_error(text, told, content.decode("utf-8", "replace"), headers)
    if status in (401, 402, 403):  # a key that may not do something is refused in much the same words
        return (
            _content_filtered(text) if status == 403 and _filter.search(error.codes) else AccessDenied(text)
        )
    if 200 <= status < 300:
        return MalformedBody(f"HTTP {status}: no answer comes with this status")
    if 300 <= status < 400:
        target = headers.get("Location", "nowhere").partition("?")[0]  # a query may be a key
        return NotServed(f"HTTP {status}: redirected to {target}; name that address as base_url")
    if status in (404, 405):
        return NotServed(text, absent=status == 404)
    if status == 408:
        return RequestTimeout(text, retry_after(headers))
    if status in (503, 529):
        return Overloaded(text, retry_after(headers))
    if status in (409, 425, 499) or status >= 500:
        return ServerFault(text, retry_after(headers))
    if status == 413 or _too_long.search(told):
        return ContextTooLong(text)
    return _content_filtered(text) if _is_refusal(error) else BadRequest(text)


def _rate_error(text: str, told: str, body: str, headers: Mapping[str, str]) -> RequestError:
    """What a 429 stands for. Limits of a minute and quotas that are used up come in the same words; who says
    how long to wait means a limit."""
    wait = retry_after(headers)
    if wait is None and (found := _delay.search(body)):
        wait = _believed(duration(found[1] or found[2]))
    if _spent_today.search(body) or (wait is None and _no_quota.search(told)):
        return AccessDenied(text)
    return RateLimited(text, told_wait(headers) if wait is None else wait)


def _content_filtered(text: str) -> ContentFiltered:
    return ContentFiltered(f"{FILTERED}: {text}")


def _error_body(content: bytes) -> ErrorBody:
    """What an error body says; its own text where it is not of OpenAI's form."""
    try:
        body: Any = orjson.loads(content)
    except orjson.JSONDecodeError:
        body = None
    if isinstance(body, list) and len(body) == 1:  # as Google has it where it speaks OpenAI's protocol
        body = body[0]
    if isinstance(body, dict):
        return _error_in(body)
    return ErrorBody(shortened(content.decode("utf-8", "replace")) or "no message")


def _error_in(body: Mapping[str, Any]) -> ErrorBody:
    error = body.get("error", body)
    if not isinstance(error, Mapping):
        text = shortened(str(error))
        return ErrorBody(text, message=text if isinstance(error, str) else "")
    message = error.get("message")
    beside = error.get("metadata")
    metadata: Mapping[str, Any] = beside if isinstance(beside, Mapping) else {}
    named = error.get("code"), error.get("type"), metadata.get("error_type")  # the last is OpenRouter's
    codes = [str(one) for one in named if one] + ["flagged_input"] * ("flagged_input" in metadata)
    return ErrorBody(
        shortened(str(message or error.get("detail") or error)),
        " ".join(codes),
        shortened(message) if isinstance(message, str) else "",
    )


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Seconds that ``Retry-After`` (seconds or an HTTP date) or ``retry-after-ms`` asks for; None: nothing
    readable.

    >>> retry_after({"Retry-After": "1.5"})
    1.5
    """
    told = headers.get("Retry-After") or headers.get("retry-after")
    for value, unit in ((headers.get("retry-after-ms"), 0.001), (told, 1.0)):
        if (seconds := _believed(finite_number(value), unit)) is not None:
            return seconds
    try:
        when = email.utils.parsedate_to_datetime(told or "").timestamp()
    except (ValueError, TypeError, OverflowError):  # a date of year 1 or 9999 has no time stamp here
        return None
    return _believed(when - (time.time() if now is None else now))


LONGEST_PAUSE = 86_400.0
"""A server that asks for more than a day, and so for the end of the run, has a mistake in the number."""


def _believed(number: float | None, unit: float = 1.0) -> float | None:
    """The seconds that somebody asks to be left alone; None for what nobody can mean."""
    return None if number is None or number * unit > LONGEST_PAUSE else max(0.0, number * unit)


KEPT_HEADERS = (
    "x-request-id",
    "request-id",
    "x-amzn-requestid",
    "openai-version",
    "x-model-id",
    "x-model-version",
)


def kept_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """What says which request a reply is to, for who asks the provider about it, and who answered."""
    return {name: headers[name] for name in KEPT_HEADERS if name in headers}


class Stream(Protocol):
    """Collects the events of one streamed answer."""

    def add(self, data: bytes) -> None:
        """Takes the data of one event; raises RequestError."""
        ...

    def body(self) -> dict[str, Any]:
        """The whole answer; raises MalformedBody when the stream ended before it did."""
        ...


class Events(Protocol):
    """Takes a stream of this media type apart into the data of its events."""

    media_type: ClassVar[str]

    def add(self, piece: bytes) -> Iterator[bytes]:
        """The data of the events that this piece ends."""
        ...

    def rest(self) -> Iterator[bytes]:
        """The data of a last event that does not end."""
        ...


@dataclass(frozen=True)
class Wire:
    """How a provider's replies are read: what a status other than 200 stands for, the JSON object in a body,
    what puts a stream of events together, and what takes the stream apart. By default as OpenAI's protocol
    has it."""

    failure: Callable[[int, bytes, Mapping[str, str]], RequestError] = status_error
    body: Callable[[bytes], dict[str, Any]] = answer_body
    stream: Callable[[], Stream] = StreamedAnswer
    events: type[Events] = EventLines
