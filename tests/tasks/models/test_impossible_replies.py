"""Replies that can't be what was asked for: log-probabilities that none can have, choices that nobody asked
for; and streams whose lines end in any of the three ways."""

import asyncio
import json
import math
from typing import Any

import pytest

from tasks.models.config import SampleParams
from tasks.models.errors import ContentFiltered, MalformedBody, ServerFault
from tasks.models.providers.openai.config import EndpointConfig
from tasks.models.providers.openai.echo import EchoMode, Likelihood
from tasks.models.providers.openai.generation import Chat
from tasks.models.records import Reply, Request
from tasks.models.wire import EventLines, StreamedAnswer

PAIR = Request(b"k", "loglikelihood", "a", " b")
SAMPLE = Request(b"k", "generate", "a")
IMPOSSIBLE = [5.0, 2e-4, True, math.inf]


def echoed(value: Any, top: Any = -9.0, index: Any = 0) -> dict[str, Any]:
    lists = {
        "tokens": ["a", " b", "."],
        "token_logprobs": [None, value, -1.0],
        "top_logprobs": [None, {" b": value, " c": top}, {".": -1.0}],
        "text_offset": [0, 1, 3],
    }
    return {"index": index, "logprobs": lists}


def likelihoods(choices: list[Any], batch: int = 1, source: Any = "echo") -> list[Any]:
    codec = Likelihood("m", EchoMode(1, source), {}, None, None, batch)
    return codec.answers([PAIR] * len(choices[:batch]), [Reply({"choices": choices}, 0.1)], 1)


@pytest.mark.parametrize("value", IMPOSSIBLE)
def test_a_log_likelihood_that_cannot_be_is_malformed(value: Any) -> None:
    with pytest.raises(MalformedBody, match="log-probabilit"):
        likelihoods([echoed(value)])


@pytest.mark.parametrize("value", IMPOSSIBLE)
def test_alternatives_that_cannot_be_are_malformed(value: Any) -> None:
    with pytest.raises(MalformedBody, match="log-probabilit"):
        likelihoods([echoed(-1.0, top=value)])


@pytest.mark.parametrize("value", IMPOSSIBLE)
def test_prompt_logprobs_that_cannot_be_are_malformed(value: Any) -> None:
    positions = [
        None,
        {"5": {"logprob": value, "rank": 1, "decoded_token": " b"}},
    ]
    choice = {"index": 0, "prompt_logprobs": positions}
    with pytest.raises(MalformedBody, match="log-probabilit"):
        likelihoods([choice], source="prompt_logprobs")


def test_a_continuation_without_a_number_is_malformed() -> None:
    with pytest.raises(MalformedBody, match="NaN"):
        likelihoods([echoed(math.nan, top=math.nan)])


@pytest.mark.parametrize("value", [0.0, 5e-5, -0.0, -1, -math.inf])
def test_what_rounding_makes_of_a_certain_token_is_taken(value: float) -> None:
    (answer,) = likelihoods([echoed(value)])
    assert (answer.status, answer.ll) == ("ok", value)


def test_a_kept_log_likelihood_that_cannot_be_is_no_answer_any_more() -> None:
    codec = Likelihood("m", EchoMode(1, "echo"), {}, None, None, 1)
    kept = {"source": "echo", "listed": 1, **echoed(5.0)}
    with pytest.raises(MalformedBody):
        codec.read(PAIR, {"spans": [kept], "usage": [], "share": [0, 1]})


@pytest.mark.parametrize(
    "indexes",
    [(None, None), (0, None), (0, 0), (1, 2), (0, 2), (-1, 0), (True, False), (0.0, 1.0)],
)
def test_a_batch_whose_choices_are_not_told_apart_is_malformed(indexes: tuple[Any, Any]) -> None:
    choices = [echoed(-1.0, index=index) for index in indexes]
    for choice in choices:
        if choice["index"] is None:
            del choice["index"]
    with pytest.raises(MalformedBody, match="index"):
        likelihoods(choices, batch=2)


def test_choices_of_a_batch_come_in_any_order() -> None:
    answers = likelihoods([echoed(-2.0, index=1), echoed(-1.0, index=0)], batch=2)
    assert [answer.ll for answer in answers] == [-1.0, -2.0]


@pytest.mark.parametrize("index", [1, 7, -1, True, False, 0.0])
def test_a_choice_alone_whose_index_was_not_asked_for_is_malformed(index: Any) -> None:
    with pytest.raises(MalformedBody, match="index"):
        likelihoods([echoed(-1.0, index=index)])
    with pytest.raises(MalformedBody, match="index"):
        texts([index], 1)


def texts(indexes: list[Any], asked: int) -> list[Any]:
    codec = Chat("m", EndpointConfig(), SampleParams(n=asked, num_samples=asked))
    choices = [
        {
            "message": {"content": str(at)},
            "finish_reason": "stop",
            **({} if index is None else {"index": index}),
        }
        for at, index in enumerate(indexes)
    ]
    answers = codec.answers([SAMPLE] * asked, [Reply({"choices": choices}, 0.1)], 1)
    return [answer.response for answer in answers]


@pytest.mark.parametrize("indexes", [[0, 0], [0, 2], [1, 2], [0, None], [True, False]])
def test_samples_whose_indexes_were_not_asked_for_are_malformed(indexes: list[Any]) -> None:
    with pytest.raises(MalformedBody, match="index"):
        texts(indexes, 2)


def test_samples_come_in_the_order_of_their_indexes_or_without_any() -> None:
    assert texts([1, 0], 2) == ["1", "0"]
    assert texts([None, None], 2) == ["0", "1"]
    assert texts([None], 1) == ["0"]


EVENTS = [
    b'{"choices":[{"index":0,"delta":{"content":"on"}}]}',
    b'{"choices":[{"index":0,"delta":{"content":"e"},"finish_reason":"stop"}]}',
    b"[DONE]",
]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_lines_of_a_stream_end_in_any_of_three_ways(end: bytes, size: int) -> None:
    whole = b"\xef\xbb\xbf: a comment" + end + end
    whole += b"".join(b"event: message" + end + b"data: " + event + end + end for event in EVENTS)
    lines = EventLines()
    found = [data for at in range(0, len(whole), size) for data in lines.add(whole[at : at + size])]
    assert [*found, *lines.rest()] == EVENTS


def test_a_streams_last_line_need_not_end() -> None:
    lines = EventLines()
    assert [*lines.add(b"data:{}\n\ndata: [DONE]"), *lines.rest()] == [b"{}", b"[DONE]"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_lines_of_one_event_are_joined_and_events_without_a_line_between_them_are_not(
    end: bytes, size: int
) -> None:
    whole = b'data: {"a":' + end + b"data:  1," + end + b'data: "b": 2}' + end + end
    whole += b'data: {"c": 3}' + end + b'data: {"d": 4}' + end + b"data: [DONE]" + end + end
    whole += b'data: {"e":' + end + b"data: 5}"
    lines = EventLines()
    found = [data for at in range(0, len(whole), size) for data in lines.add(whole[at : at + size])]
    found += lines.rest()
    assert found == [b'{"a":\n1,\n"b": 2}', b'{"c": 3}', b'{"d": 4}', b"[DONE]", b'{"e":\n5}']


@pytest.mark.parametrize(
    "event",
    [
        {"text": "**NETWORK ERROR**", "error_code": 50001},
        {"object": "error", "message": "the worker died", "type": "internal"},
        {"code": 500, "message": "boom"},
    ],
)
def test_an_error_in_a_stream_is_one_whatever_it_is_called(event: dict[str, Any]) -> None:
    answer = StreamedAnswer()
    answer.add(EVENTS[0])
    with pytest.raises(ServerFault, match=r"NETWORK ERROR|the worker died|boom"):
        answer.add(json.dumps(event).encode())


@pytest.mark.parametrize(
    "event", [{"usage": {"prompt_tokens": 1}}, {"code": 200, "message": "ok"}, {"id": "x"}, {"choices": []}]
)
def test_what_a_stream_says_beside_its_choices_is_no_error(event: dict[str, Any]) -> None:
    answer = StreamedAnswer()
    for data in (EVENTS[0], json.dumps(event).encode(), EVENTS[1]):
        answer.add(data)
    assert answer.body()["choices"][0]["message"]["content"] == "one"


def streamed(client: Any, script: Any, body: str, kind: str = "text/event-stream") -> Any:
    from tasks.models.config import ModelConfig
    from tasks.models.providers.provider import ServedModel, provider_of
    from tasks.models.records import Call

    address = script(lambda asked: (200, {"Content-Type": kind}, body.encode()))
    config = EndpointConfig(base_url=address, client=client, stream=True)
    provider = provider_of(ModelConfig(name="m", config=config))

    async def asked() -> Any:
        transport = provider.transport(ServedModel(address, "m", config), 1)
        try:
            call = Call("chat/completions", {"model": "m", "messages": [], "stream": True})
            return await transport.send(call, 20)
        finally:
            await transport.close()

    return asyncio.run(asked()).body["choices"][0]["message"]["content"]


@pytest.mark.parametrize("client", ["http", "openai"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_both_clients_read_streams_with_any_line_ends(client: Any, end: str, script: Any) -> None:
    body = f": hello{end}{end}" + "".join(f"data: {event.decode()}{end}{end}" for event in EVENTS)
    assert streamed(client, script, body) == "one"


@pytest.mark.parametrize("client", ["http", "openai"])
@pytest.mark.parametrize("first", ["id: 1", "retry: 3000", "event: chunk", ": hello"])
def test_a_stream_under_another_type_is_one_whatever_field_it_begins_with(
    client: Any, first: str, script: Any
) -> None:
    body = f"{first}\n" + "".join(f"data: {event.decode()}\n\n" for event in EVENTS)
    assert streamed(client, script, body, "text/plain") == "one"


@pytest.mark.parametrize("client", ["http", "openai"])
def test_a_whole_answer_under_the_type_of_events_is_one(client: Any, script: Any) -> None:
    answer = {"choices": [{"index": 0, "message": {"content": "one"}, "finish_reason": "stop"}]}
    assert streamed(client, script, "\n" + json.dumps(answer, indent=1)) == "one"


@pytest.mark.parametrize("client", ["http", "openai"])
def test_an_error_under_the_type_of_events_says_what_it_says(client: Any, script: Any) -> None:
    error = {"error": {"message": "the prompt was blocked", "code": "content_filter"}}
    with pytest.raises(ContentFiltered, match="the prompt was blocked"):
        streamed(client, script, json.dumps(error))


EXCEEDED = '{"code":500,"message":"Context size has been exceeded.","type":"server_error"}'


@pytest.mark.parametrize("client", ["http", "openai"])
@pytest.mark.parametrize(
    "fault",
    [
        f"error: {EXCEEDED}",
        f"error: {EXCEEDED}\n",
        "error: Context size has been exceeded.\n",
        f'event: error\ndata: {{"error": {EXCEEDED}}}\n',
        'event: error\ndata: {"message": "Context size has been exceeded.", "type": "server_error"}\n',
        "event: error\ndata: Context size has been exceeded.\n",
    ],
)
def test_a_stream_that_an_error_breaks_off_is_no_answer_whatever_ends_it(
    client: Any, fault: str, script: Any
) -> None:
    body = f"data: {EVENTS[0].decode()}\n\n{fault}\ndata: [DONE]\n\n"
    with pytest.raises(ServerFault, match="Context size has been exceeded"):
        streamed(client, script, body)


def test_the_name_of_an_error_is_of_its_own_event_alone() -> None:
    lines = EventLines()
    found = [*lines.add(b'event: error\n\nevent: message\ndata: {"a": 1}\n\n'), *lines.rest()]
    assert found == [b'{"a": 1}']


@pytest.mark.parametrize("client", ["http", "openai"])
@pytest.mark.parametrize(
    "kind", ["text/plain; charset=utf-8", "application/json", "application/octet-stream"]
)
@pytest.mark.parametrize("begins", ["", ": hello\n\n", "event: message\n", "\n", "\ufeff"])
def test_events_are_read_as_a_stream_whatever_type_they_are_sent_with(
    client: Any, kind: str, begins: str, script: Any
) -> None:
    body = begins + "".join(f"data: {event.decode()}\n\n" for event in EVENTS)
    assert streamed(client, script, body, kind) == "one"


@pytest.mark.parametrize("client", ["http", "openai"])
def test_an_error_in_events_of_another_type_is_told(client: Any, script: Any) -> None:
    with pytest.raises(ServerFault, match="Context size has been exceeded"):
        streamed(client, script, f"data: {EVENTS[0].decode()}\n\nerror: {EXCEEDED}\n\n", "text/plain")
