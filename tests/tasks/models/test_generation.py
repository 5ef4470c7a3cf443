"""What is asked for and what is read: samples, seeds, stop sequences, log-probabilities, reasoning."""

import logging
from dataclasses import replace
from typing import Any

import orjson
import pytest

from tasks.messages.endings import is_at_limit
from tasks.models.answers.journal import decode, encode
from tasks.models.answers.reading import read_replies
from tasks.models.answers.segments import table_of
from tasks.models.config import ModelConfig, Price, ReasoningConfig, SampleParams
from tasks.models.errors import (
    BadRequest,
    ContentFiltered,
    EmptyAnswer,
    MalformedBody,
    ModelError,
    ServerFault,
)
from tasks.models.limits.spending import cost_of
from tasks.models.providers.openai.config import EndpointConfig
from tasks.models.providers.openai.generation import Chat, Completions, Generation, TokenPrompts
from tasks.models.records import KeptAnswer, Reply, Request
from tasks.models.served import room_of
from tasks.models.tokenizers import ByteTokenizer
from tasks.models.wire import StreamedAnswer, answer_body, json_object

CHAT = EndpointConfig()


def generation(config: EndpointConfig = CHAT, **params) -> Generation:
    made = Chat if config.api == "chat" else Completions
    return made("m", config, SampleParams(**params))


def body(message=None, **choice):
    content = {"message": message or {"content": "hi"}, "finish_reason": "stop", **choice}
    return {
        "id": "x",
        "model": "served",
        "choices": [content],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }


def read_again(kept: KeptAnswer) -> dict[str, Any]:
    """The row of an answer once it was kept, as it is read of its reply."""
    requests = [Request(kept.key, "generate", "p")]
    return read_replies(lambda _: generation(), requests, table_of([kept])).to_pylist()[0]


def answered(reply_body, request=None, **params):
    request = request or Request(b"k", "generate", "p")
    return generation(**params).answers([request], [Reply(reply_body, 0.5)], 1)[0]


def test_samples_have_seeds_of_their_own_and_differ(bench, served, endpoint, problems):
    serving = served(error_rate=0.5)
    eight = bench.ask(
        endpoint(serving), problems(4), sampling={"num_samples": 8, "seed": 1, "temperature": 1}
    )
    assert eight.column("sample_index") == list(range(8)) * 4
    assert eight.rows[9]["sample_id"] == "item-1_sample_1"
    assert len({row["response"] for row in eight.rows[:8]}) > 1
    sixteen = bench.ask(
        endpoint(serving), problems(4), sampling={"num_samples": 16, "seed": 1, "temperature": 1}
    )
    assert sixteen.tally.sent == 32
    assert [row["response"] for row in sixteen.rows[:8]] == [row["response"] for row in eight.rows[:8]]


def test_samples_together_take_one_request_and_one_prompt(bench, served, endpoint, problems):
    serving = served(error_rate=0.5)
    outcome = bench.ask(endpoint(serving), problems(3), sampling={"num_samples": 8, "n": 4, "temperature": 1})
    assert serving.stats()["received"] == 6
    assert len({row["response"] for row in outcome.rows[:4]}) > 1
    assert sum(outcome.column("total_tokens")) == serving.stats()["tokens"]
    assert len({row["request_key"] for row in outcome.rows}) == 24


def children(asked):
    """Answers that say the seed they are drawn with, which is one more for each, as vLLM has it."""
    seed, count = asked.body["seed"], asked.body.get("n", 1)
    choices = [
        {"index": at, "finish_reason": "stop", "message": {"content": str(seed + at)}} for at in range(count)
    ]
    return 200, {}, {"choices": choices}


def test_samples_together_are_drawn_with_the_seeds_that_they_have_alone(bench, problems, script):
    seen = []

    def answer(asked):
        seen.append((asked.body["seed"], asked.body.get("n")))
        if asked.body["seed"] in broken:
            return 400, {}, {"error": {"message": "not this one"}}
        return children(asked)

    config = {"model": "m", "base_url": script(answer), "max_concurrency": 1}
    model = ModelConfig.model_validate({"name": "a", "config": config})
    sampling = {"n": 2, "num_samples": 5, "seed": 7}
    broken = {9}
    first = bench.ask(model, problems(1), sampling=sampling)
    assert (seen, first.column("response")) == ([(7, 2), (9, 2), (11, None)], ["7", "8", None, None, "11"])
    seen.clear()
    broken.clear()
    more = bench.ask(model, problems(1), sampling={**sampling, "num_samples": 7})
    assert more.column("response") == ["7", "8", "9", "10", "11", "12", "13"]
    assert seen == [(9, 2), (12, 2)]
    alone = bench.ask(model, problems(1), sampling={"num_samples": 7, "seed": 7})
    assert alone.column("response") == more.column("response")


def test_an_endpoint_that_gives_one_answer_whatever_n_says_is_asked_once_and_the_remedy_named(
    bench, problems, script
):
    seen = []

    def answer(asked):
        seen.append(asked.body["n"])
        return 200, {}, body({"content": "4"})

    config = {"model": "m", "base_url": script(answer), "max_concurrency": 1}
    model = ModelConfig.model_validate({"name": "a", "config": config})
    outcome = bench.ask(model, problems(2), sampling={"n": 4, "num_samples": 4, "temperature": 1})
    assert seen == [4, 4]
    assert set(outcome.column("error")) == {
        "the endpoint gives one answer to a request for 4; leave sample_params.n out"
    }


@pytest.mark.parametrize(
    ("seed", "calls"), [({"seed": 7}, [(8, 1), (7, 1), (9, 1)]), ({}, [(None, 1), (None, 2)])]
)
def test_samples_with_another_between_them_go_apart_where_they_have_seeds(
    bench, batch_of, script, seed, calls
):
    seen = []

    def answer(asked):
        seen.append((asked.body.get("seed"), asked.body.get("n", 1)))
        return 200, {}, {"choices": body()["choices"] * asked.body.get("n", 1)}

    config = {"model": "m", "base_url": script(answer), "max_concurrency": 1}
    model = ModelConfig.model_validate({"name": "a", "config": config})
    bench.ask(model, batch_of([{"first_sample": 1}]), sampling={"n": 2, **seed})
    bench.ask(model, batch_of([{}]), sampling={"n": 2, "num_samples": 3, **seed})
    assert seen == calls


def test_a_limit_first_and_all_of_it_later_asks_only_for_the_rest(bench, served, endpoint, problems):
    serving = served()
    assert bench.ask(endpoint(serving), problems(20)).tally.sent == 20
    whole = bench.ask(endpoint(serving), problems(50))
    assert (whole.tally.sent, whole.tally.cached) == (30, 20)
    assert whole.tally.saved_tokens == sum(row["total_tokens"] for row in whole.rows[:20])
    assert whole.column("item_id") == [f"item-{i}" for i in range(50)]


def test_batches_that_can_be_read_once_are_read_again_from_disk(bench, served, endpoint, problems):
    outcome = bench.ask(endpoint(served()), iter(problems(20)))
    assert outcome.column("status") == ["ok"] * 20


def test_equal_prompts_are_asked_once_and_answered_twice(bench, served, endpoint, batch_of):
    serving = served()
    outcome = bench.ask(endpoint(serving), batch_of([{"prompts": ["same"]}, {"prompts": ["same"]}]))
    assert serving.stats()["received"] == 1
    assert outcome.rows[0]["response"] == outcome.rows[1]["response"]
    assert outcome.column("item_id") == ["item-0", "item-1"]


def test_the_embedded_model_starts_only_when_something_is_missing(bench, problems, monkeypatch):
    from tasks.models.demo import server as sharing

    demo = ModelConfig(name="demo", type="demo")
    first = bench.ask(demo, problems(5))
    monkeypatch.setattr(sharing, "serve", lambda options: pytest.fail("the server was started for nothing"))
    again = bench.ask(demo, problems(5))
    assert again.rows == first.rows
    assert (again.tally.sent, again.tally.cached) == (0, 5)


def test_parameters_are_sent_as_the_config_says_and_no_others():
    config = EndpointConfig(extra_body={"top_a": 0.5}, stream=True)
    (call,) = generation(config, temperature=0.5, max_tokens=7, stop="x", num_samples=3).calls(
        [Request(b"k", "generate", "p", seed=4)]
    )
    assert call.path == "chat/completions"
    assert call.body == {
        "model": "m", "temperature": 0.5, "max_tokens": 7, "stop": ["x"], "top_a": 0.5, "seed": 4,
        "stream": True, "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "p"}],
    }  # fmt: skip


def test_a_chat_prompt_is_its_messages():
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    (call,) = generation().calls([Request(b"k", "generate", orjson.dumps(messages).decode(), chat=True)])
    assert call.body["messages"] == messages


def test_reasoning_is_kept_apart_from_the_answer():
    for name in ("reasoning_content", "reasoning"):
        answer = answered(body({"content": "4", name: "2 + 2"}))
        assert (answer.response, answer.reasoning) == ("4", "2 + 2")


def text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


@pytest.mark.parametrize("thinking", [[text_part("2 + "), text_part("2")], "2 + 2"])
def test_parts_of_a_content_that_are_thoughts_are_kept_apart_from_the_answer(thinking):
    thought = {"type": "thinking", "thinking": thinking}
    assembly = StreamedAnswer()
    for part in (thought, text_part("4")):
        assembly.add(orjson.dumps({"choices": [{"index": 0, "delta": {"content": [part]}}]}))
    assembly.add(orjson.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
    for reply in (body({"content": [thought, text_part("4")]}), assembly.body()):
        answer = answered(reply | {"usage": {"completion_tokens": 12}})
        assert (answer.response, answer.reasoning, answer.reasoning_tokens) == ("4", "2 + 2", 10)
    for finish, status in (("stop", "ok"), ("length", "cut_off")):
        alone = answered(body({"content": [thought]}, finish_reason=finish))
        assert (alone.status, alone.reasoning) == (status, "2 + 2")


def test_an_answer_cut_to_nothing_by_a_stop_sequence_is_an_answer():
    assert answered(body({"content": ""}), stop=["\n"]).response == ""


NOTHING, CUT, MODEL = EmptyAnswer, "cut_off", "refused"
THOUGHT = {"reasoning_content": "2 + 2"}
CALL = {"tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}
# What a message holds, and what becomes of it when it ended with stop, length, content_filter, tool_calls.
# An outcome is a status, or the text of an answer; NOTHING is asked again.
REPLIES = [
    ("nothing", {"content": None}, [NOTHING, CUT, MODEL, NOTHING]),
    ("empty", {"content": ""}, ["ok:", CUT, MODEL, "ok:"]),
    ("white space", {"content": " \n"}, ["ok: \n", CUT, MODEL, "ok: \n"]),
    ("thought only", {"content": None, **THOUGHT}, ["ok:", CUT, MODEL, "ok:"]),
    ("thought, empty", {"content": "", **THOUGHT}, ["ok:", CUT, MODEL, "ok:"]),
    ("unclosed", {"content": "<think>2 +"}, ["ok:", CUT, MODEL, "ok:"]),
    ("closed, nothing after", {"content": "<think>2 + 2</think>\n"}, ["ok:", CUT, MODEL, "ok:"]),
    ("closed", {"content": "<think>2 + 2</think>\n\n4"}, ["ok:4", "ok:4", MODEL, "ok:4"]),
    ("end alone", {"content": "2 + 2</think>4"}, ["ok:4", "ok:4", MODEL, "ok:4"]),
    ("text", {"content": "4"}, ["ok:4", "ok:4", MODEL, "ok:4"]),
    ("thought, text", {"content": "4", **THOUGHT}, ["ok:4", "ok:4", MODEL, "ok:4"]),
    ("refusal", {"content": None, "refusal": "I won't"}, [MODEL] * 4),
    ("text, refusal", {"content": "No.", "refusal": "I won't"}, [MODEL] * 4),
    ("a call", {"content": None, **CALL}, ["ok:", "ok:", MODEL, "ok:"]),
    ("thought, call", {"content": None, **THOUGHT, **CALL}, ["ok:", "ok:", MODEL, "ok:"]),
]
FINISHES = ("stop", "length", "content_filter", "tool_calls")


@pytest.mark.parametrize("finish", FINISHES)
@pytest.mark.parametrize(("message", "expected"), [row[1:] for row in REPLIES], ids=[r[0] for r in REPLIES])
def test_every_reply_has_its_outcome(message, expected, finish):
    wanted = expected[FINISHES.index(finish)]
    reply = body(message, finish_reason=finish)
    if wanted is NOTHING:
        with pytest.raises(EmptyAnswer, match="no content"):
            answered(reply)
        return
    answer = answered(reply)
    status, _, text = wanted.partition(":")
    assert (answer.status, answer.response) == (status, text if status == "ok" else None)
    assert (answer.error is None) == (status == "ok")
    if "reasoning_content" in message or "think>" in str(message["content"]):
        assert status == MODEL or answer.reasoning.startswith("2 +")  # kept apart, cut or not


# The same where the chat template opens the thought: what has no mark is a thought that never ended.
OPENED = [
    ("nothing", {"content": None}, [NOTHING, CUT, MODEL, NOTHING]),
    ("empty", {"content": ""}, ["ok:", CUT, MODEL, "ok:"]),
    ("white space", {"content": " \n"}, ["ok:", CUT, MODEL, "ok:"]),
    ("thought apart", {"content": None, **THOUGHT}, ["ok:", CUT, MODEL, "ok:"]),
    ("thought apart, text", {"content": "4", **THOUGHT}, ["ok:4", "ok:4", MODEL, "ok:4"]),
    ("unclosed, no opener", {"content": "2 +"}, ["ok:", CUT, MODEL, "ok:"]),
    ("unclosed, opener", {"content": "<think>2 +"}, ["ok:", CUT, MODEL, "ok:"]),
    ("end alone", {"content": "2 + 2</think>4"}, ["ok:4", "ok:4", MODEL, "ok:4"]),
    ("end alone, nothing after", {"content": "2 + 2</think>"}, ["ok:", CUT, MODEL, "ok:"]),
    ("a call", {"content": None, **CALL}, ["ok:", "ok:", MODEL, "ok:"]),
]


@pytest.mark.parametrize("finish", FINISHES)
@pytest.mark.parametrize(("message", "expected"), [row[1:] for row in OPENED], ids=[r[0] for r in OPENED])
def test_every_reply_has_its_outcome_where_the_template_opens_the_thought(message, expected, finish):
    wanted = expected[FINISHES.index(finish)]
    codec = Chat("m", CHAT, SampleParams(), reasoning=ReasoningConfig(opened=True))
    reply = [Reply(body(message, finish_reason=finish), 0.5)]
    if wanted is NOTHING:
        with pytest.raises(EmptyAnswer, match="no content"):
            codec.answers([Request(b"k", "generate", "p")], reply, 1)
        return
    (answer,) = codec.answers([Request(b"k", "generate", "p")], reply, 1)
    status, _, text = wanted.partition(":")
    assert (answer.status, answer.response) == (status, text if status == "ok" else None)


@pytest.mark.parametrize(
    ("opened", "content", "finish", "expected"),
    [
        (True, "2 + 2 is", "length", ("cut_off", None, "2 + 2 is")),
        (True, "2 + 2 is", "stop", ("ok", "", "2 + 2 is")),
        (True, "2 + 2</think>4", "length", ("ok", "4", "2 + 2")),
        ("auto", "2 + 2 is", "length", ("ok", "2 + 2 is", None)),
        (False, "2 + 2 is", "length", ("ok", "2 + 2 is", None)),
        (False, "ends with </think>4", "stop", ("ok", "ends with </think>4", None)),
        (False, "<think>2 +", "length", ("cut_off", None, "2 +")),
    ],
)
@pytest.mark.parametrize("api", ["chat", "completions"])
def test_who_opens_the_thought_decides_what_an_unmarked_text_is(api, opened, content, finish, expected):
    made = Chat if api == "chat" else Completions
    codec = made("m", EndpointConfig(api=api), SampleParams(), reasoning=ReasoningConfig(opened=opened))
    choice = {"finish_reason": finish, "message": {"content": content}, "text": content}
    (answer,) = codec.answers([Request(b"k", "generate", "p")], [Reply({"choices": [choice]}, 0.5)], 1)
    whole = ("ok", content, None)  # a completion is whatever text follows
    found = (answer.status, answer.response, answer.reasoning)
    assert found == (expected if api == "chat" or opened is True else whole)


def test_an_error_beside_choices_is_an_error_and_no_answer():
    said = {**body({"content": "4"}), "error": {"message": "the worker died", "code": "internal"}}
    with pytest.raises(ServerFault, match="the worker died"):
        answer_body(orjson.dumps(said))
    filtered = {**body({"content": ""}), "error": {"message": "no", "code": "content_filter"}}
    with pytest.raises(ContentFiltered):
        answer_body(orjson.dumps(filtered))
    assert answer_body(orjson.dumps({**body(), "error": None}))["choices"]


UPSTREAM = {"message": "Upstream error", "code": 502}


@pytest.mark.parametrize(
    "choice",
    [
        {"finish_reason": "abort"},
        {"finish_reason": "error"},
        {"finish_reason": "insufficient_system_resource"},
        {"finish_reason": "network_error"},
        {"finish_reason": "ERROR"},
        {"finish_reason": "stop", "error": UPSTREAM},
    ],
)
@pytest.mark.parametrize("message", [{"content": ""}, {"content": "The answer is 1"}, CALL])
def test_an_answer_that_the_server_broke_off_is_none_and_asked_again(choice, message):
    with pytest.raises(ServerFault, match=r"finish reason|Upstream error"):
        answered(body(message, **choice))
    with pytest.raises(ServerFault):
        answered(body(message, **choice, logprobs={"content": []}), logprobs=True, max_tokens=1)
    assembly = StreamedAnswer()
    streamed = {"index": 0, "delta": message, **choice}
    assembly.add(orjson.dumps({"choices": [streamed]}))
    with pytest.raises(ServerFault):
        answered(assembly.body())


@pytest.mark.parametrize("text", ["4", "", None])
@pytest.mark.parametrize(
    "finish",
    ["sensitive", "SAFETY", "PROHIBITED_CONTENT", "RECITATION", "content_filter: SPII", "content_filtered"],
)
def test_an_answer_that_a_filter_ended_is_refused_in_whatever_words_the_endpoint_says_it(finish, text):
    answer = answered(body({"content": text}, finish_reason=finish))
    assert (answer.status, answer.response, answer.finish_reason) == ("refused", None, finish)


@pytest.mark.parametrize("finish", ["MAX_TOKENS", "model_length", "model_context_window_exceeded"])
def test_used_up_tokens_are_known_in_whatever_words_the_endpoint_says_it(finish):
    empty, begun = (answered(body({"content": text}, finish_reason=finish)) for text in (None, "4"))
    assert (empty.status, begun.status, begun.response) == ("cut_off", "ok", "4")
    assert is_at_limit(begun.finish_reason)


def test_a_filter_that_a_choice_names_in_its_error_is_a_refusal():
    error = {"message": "no", "code": "content_filter"}
    answer = answered(body({"content": ""}, finish_reason="error", error=error))
    assert (answer.status, answer.response, answer.total_tokens) == ("refused", None, None)
    assert answer.prompt_tokens == 3


def test_a_kept_answer_that_was_broken_off_is_none_any_more():
    whole = answered(body({"content": "4"}))
    broken = orjson.dumps({"choice": body({"content": "4"}, finish_reason="abort")["choices"][0]}).decode()
    row = read_again(replace(whole, key=bytes(32), reply_json=broken))
    assert (row["status"], row["response"]) == ("infra_error", None)
    assert "--refresh infer asks again" in row["error"]


@pytest.mark.parametrize(
    "reply",
    [{}, {"choices": []}, {"choices": ["x"]}, {"choices": [{"text": "no message"}]}, body({"content": 5})],
)
def test_another_shape_is_malformed_and_asked_again(reply):
    with pytest.raises(MalformedBody):
        answered(reply)


def test_usage_and_provenance_are_kept():
    reply = body()
    reply["usage"] |= {
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    answer = answered(reply)
    assert (
        answer.prompt_tokens,
        answer.completion_tokens,
        answer.cached_tokens,
        answer.reasoning_tokens,
    ) == (3, 2, 2, 1)
    assert (answer.served_model, answer.response_id, answer.inference_time) == ("served", "x", 0.5)


@pytest.mark.parametrize(
    ("usage", "completion", "thought"),
    [
        # The thought is counted in the completion, as OpenAI has it.
        ({"completion_tokens": 103, "total_tokens": 135, "reasoning_tokens": 94}, 103, 94),
        ({"completion_tokens": 100, "total_tokens": 132, "reasoning_tokens": 0}, 100, 0),
        ({"completion_tokens": 94, "total_tokens": 126, "reasoning_tokens": 94}, 94, 94),
        # It is counted beside it, as Grok has it.
        ({"completion_tokens": 9, "total_tokens": 135, "reasoning_tokens": 94}, 103, 94),
        ({"completion_tokens": 100, "total_tokens": 162, "reasoning_tokens": 30}, 130, 30),
        ({"completion_tokens": 9, "reasoning_tokens": 94}, 103, 94),
        # What the total leaves out is nowhere counted.
        ({"completion_tokens": 9, "total_tokens": 41, "reasoning_tokens": 94}, 9, 94),
    ],
)
def test_a_thought_costs_what_answers_cost_wherever_the_server_counts_it(usage, completion, thought):
    told = {name: value for name, value in usage.items() if name != "reasoning_tokens"}
    details = {"completion_tokens_details": {"reasoning_tokens": usage["reasoning_tokens"]}}
    answer = answered({**body({"content": "4"}), "usage": {"prompt_tokens": 32, **told, **details}})
    assert (answer.completion_tokens, answer.reasoning_tokens) == (completion, thought)


@pytest.mark.parametrize(
    "said",
    [
        {"prompt_tokens_details": {"cached_tokens": 2}},
        {"prompt_tokens_details": {"cached_tokens": 2}, "cached_tokens": 1},
        {"prompt_cache_hit_tokens": 2, "prompt_cache_miss_tokens": 1},
        {"prompt_tokens_details": {"cached_tokens": None}, "prompt_cache_hit_tokens": 2},
        {"prompt_tokens_details": None, "cached_tokens": 2},
    ],
)
def test_cached_tokens_are_counted_wherever_the_endpoint_says_them(said):
    reply = body({"content": "4"})
    reply["usage"] |= said
    assert answered(reply).cached_tokens == 2


def test_a_prompt_has_no_more_cached_tokens_than_it_has_tokens():
    reply = body()
    reply["usage"] |= {"prompt_tokens_details": {"cached_tokens": 100_000}}
    assert (answered(reply).prompt_tokens, answered(reply).cached_tokens) == (3, 3)
    assert cost_of(3, 0, 100_000, Price(prompt=10.0, completion=1.0, cached=1.0)) == pytest.approx(3e-6)


def test_log_probabilities_are_kept_if_asked_for(bench, served, endpoint, problems):
    outcome = bench.ask(endpoint(served()), problems(1), sampling={"logprobs": True})
    assert orjson.loads(outcome.rows[0]["logprobs_json"])["content"]
    assert bench.ask(endpoint(served()), problems(1)).rows[0]["logprobs_json"] is None


def test_lone_surrogates_in_an_answer_do_not_stop_a_run():
    content = b'{"choices": [{"message": {"content": "a\\ud800b"}, "finish_reason": "stop"}]}'
    answer = replace(answered(json_object(content)), key=bytes(32))
    assert answer.response == "a?b"
    kept = decode(encode(answer))
    assert kept is not None
    assert read_again(kept)["response"] == "a?b"


def test_a_character_whose_halves_come_in_two_events_is_one():
    assembly = StreamedAnswer()
    for event in (
        b'{"choices":[{"index":0,"delta":{"content":"a \\ud83d"}}]}',
        b'{"choices":[{"index":0,"delta":{"content":"\\ude00 b \\ud83d","tool_calls":[]}}]}',
        b'{"choices":[{"index":0,"delta":{"content":" c"},"finish_reason":"stop"}]}',
    ):
        assembly.add(event)
    assert answered(assembly.body()).response == "a \U0001f600 b ? c"
    with pytest.raises(ServerFault) as raised:
        assembly.add(b'{"error":{"message":"half of one: \\ud83d"}}')
    assert str(raised.value).endswith("half of one: ?")


def test_a_stream_that_ends_early_is_malformed():
    assembly = StreamedAnswer()
    assembly.add(b'{"choices":[{"index":0,"delta":{"content":"half"}}]}')
    with pytest.raises(MalformedBody):
        assembly.body()


def test_a_stream_is_put_together():
    assembly = StreamedAnswer()
    for event in (
        b'{"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}',
        b'{"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}',
        b'{"choices":[{"index":0,"delta":{"content":"on"}}]}',
        b'{"choices":[{"index":0,"delta":{"content":"e"},"finish_reason":"stop"}]}',
        b'{"choices":[],"usage":{"prompt_tokens":1}}',
        b"[DONE]",
    ):
        assembly.add(event)
    answer = answered(assembly.body())
    assert (answer.response, answer.reasoning, answer.finish_reason, answer.prompt_tokens) == (
        "one",
        "hm",
        "stop",
        1,
    )


COMPLETIONS = EndpointConfig(api="completions")


class Ending(ByteTokenizer):
    """Bytes with an end that has a text."""

    end = "</s>"


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (True, [[list(b"abc")], [list(b"abcdef")], [list(b"456789")]]),
        (False, ["abc", "abcdef", "456789"]),
    ],
    ids=["ids", "text"],
)
def test_prompts_go_as_ids_where_the_server_takes_them_and_lose_their_beginning_beyond_the_window(
    ids, expected
):
    asking = Completions(
        "m", COMPLETIONS, SampleParams(max_tokens=4), prompts=TokenPrompts(ByteTokenizer(), 6, ids=ids)
    )
    sent = [
        asking.calls([Request(b"k", "generate", text)])[0].body["prompt"]
        for text in ("abc", "abcdef", "0123456789")
    ]
    assert sent == expected


def test_the_window_leaves_a_place_as_lm_evaluation_harness_does():
    model = ModelConfig(name="m", tokenizer="bytes", max_length=10)
    assert room_of(model, SampleParams(max_tokens=4)) == 5
    assert room_of(model, SampleParams()) is None
    with pytest.raises(ModelError, match="leaves no room"):
        room_of(model, SampleParams(max_tokens=9))


@pytest.mark.parametrize(
    ("stop", "expected"), [(["\n"], ["\n", "</s>"]), (["</s>"], ["</s>"]), (None, ["</s>"])]
)
def test_the_end_of_a_known_tokenizer_is_a_stop_sequence(stop, expected):
    params = SampleParams() if stop is None else SampleParams(stop=stop)
    request = Request(b"k", "generate", "p")
    (call,) = Completions("m", COMPLETIONS, params, prompts=TokenPrompts(Ending())).calls([request])
    assert call.body["stop"] == expected
    (chat,) = Chat("m", CHAT, params).calls([request])
    assert chat.body.get("stop") == stop


@pytest.mark.parametrize(
    ("text", "finish", "status"),
    [("", "stop", "ok"), ("", "length", "cut_off"), (" ", "length", "cut_off"), ("4", "length", "ok")],
)
def test_a_completion_without_text_was_cut_off_if_its_tokens_were_used_up(text, finish, status):
    reply = Reply({"choices": [{"text": text, "finish_reason": finish}]}, 0.5)
    (answer,) = generation(COMPLETIONS).answers([Request(b"k", "generate", "p")], [reply], 1)
    assert answer.status == status


def test_ids_of_a_known_tokenizer_reach_the_server(bench, served, endpoint, problems):
    serving = served()
    model = endpoint(serving, api="completions", tokenizer="bytes")
    with_ids = bench.ask(model, problems(2))
    as_text = bench.ask(endpoint(serving, api="completions"), problems(2))
    assert with_ids.column("response") == as_text.column("response")
    assert serving.stats()["received"] == 1 + 2 + 2  # one question whether it takes them


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "image"}], ""),
        ([{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": 5}, "b"], "ab"),
    ],
)
def test_parts_of_a_content_that_hold_no_text_are_left_out(content, text):
    assert answered(body({"content": content})).response == text
    assembly = StreamedAnswer()
    delta = {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": "stop"}]}
    assembly.add(orjson.dumps(delta))
    assert answered(assembly.body()).response == text


@pytest.mark.parametrize(
    ("fields", "usage"),
    [
        ({"finish_reason": 7}, {}),
        ({"finish_reason": {"type": "stop"}}, {}),
        ({}, {"prompt_tokens": 2**63}),
        ({}, {"prompt_tokens": True, "completion_tokens": 2**63 - 1}),
    ],
)
def test_facts_of_a_wrong_type_are_left_out_and_the_answer_is_kept(fields, usage):
    reply = body(**fields)
    reply["usage"] = usage
    answer = answered(reply, Request(bytes(32), "generate", "p"))
    assert read_again(answer)["response"] == "hi"
    assert (answer.prompt_tokens, answer.completion_tokens) == (None, None)


def test_what_the_server_says_with_status_200_is_in_the_error():
    for error in ({"message": "upstream died", "code": 502}, "upstream died"):
        with pytest.raises(ServerFault, match="status 200: upstream died"):
            answer_body(orjson.dumps({"error": error}))


def test_a_body_nested_too_deeply_is_malformed():
    with pytest.raises(MalformedBody):
        json_object(b"[" * 200_000)


@pytest.mark.parametrize(
    "choices", [["x"], {"0": {}}, 5, [{"index": {"a": 1}}], [{"index": "0", "delta": {"content": "a"}}]]
)
def test_an_event_of_another_shape_is_malformed(choices):
    with pytest.raises(MalformedBody):
        StreamedAnswer().add(orjson.dumps({"choices": choices}))


class FewStops:
    """An endpoint that holds to OpenAI's limit, and says what it was asked; it knows no stop sequence."""

    def __init__(self, most: int = 4, text: str = "one two three four five") -> None:
        self.most, self.text, self.bodies = most, text, []

    async def send(self, call, timeout):
        self.bodies.append(call.body)
        if len(call.body.get("stop", ())) > self.most:
            raise BadRequest("400: Invalid 'stop': array too long. Expected an array with maximum length 4")
        finish = {"finish_reason": "length"}
        return Reply(body({"content": self.text}, text=self.text, **finish), 0.1)

    async def close(self):
        return None


STOPS = ["never", "nowhere", "not", "nor", "four", "three"]


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_stop_sequences_beyond_the_endpoints_limit_cut_the_answer_here(
    bench, problems, monkeypatch, caplog, api
):
    asked = FewStops()
    monkeypatch.setattr("tasks.models.providers.openai.OpenAI.transport", lambda *_: asked)
    model = ModelConfig(name=f"few-{api}", config={"base_url": "http://127.0.0.1:9/v1", "api": api})
    with caplog.at_level(logging.WARNING):
        rows = [bench.ask(model, problems(3), sampling={"stop": STOPS, "max_tokens": 9}).rows]
        rows += [bench.ask(model, problems(5), sampling={"stop": STOPS, "max_tokens": 9}).rows]
    assert {row["response"] for row in rows[0] + rows[1]} == {"one two "}
    assert {row["finish_reason"] for row in rows[0]} == {"stop"}
    assert [len(sent["stop"]) for sent in asked.bodies] == [6, *[4] * 5], "found out once"
    said = [record.getMessage() for record in caplog.records if "stop sequences" in record.getMessage()]
    assert "takes 4 of the 6 stop sequences; answers are cut here at the others: 'four', 'three'" in said[0]


def test_an_endpoint_that_takes_all_stop_sequences_is_sent_them(bench, problems, monkeypatch):
    asked = FewStops(most=99)
    monkeypatch.setattr("tasks.models.providers.openai.OpenAI.transport", lambda *_: asked)
    model = ModelConfig(name="many", config={"base_url": "http://127.0.0.1:9/v1"})
    rows = bench.ask(model, problems(2), sampling={"stop": STOPS}).rows
    assert [len(sent["stop"]) for sent in asked.bodies] == [6, 6, 6]
    assert rows[0]["response"] == asked.text


class WithEnd(ByteTokenizer):
    end = "</s>"


def test_the_tokenizers_end_is_among_the_stop_sequences_that_are_sent():
    made = Completions(
        "m", EndpointConfig(api="completions"), SampleParams(stop=("a", "b", "c", "d")),
        prompts=TokenPrompts(WithEnd()),
    )  # fmt: skip
    end = made.calls([Request(b"", "generate", "p")])[0].body["stop"][-1]
    assert made.keep_stops(4) == ["d"]
    assert made.calls([Request(b"", "generate", "p")])[0].body["stop"] == ["a", "b", "c", end]


def test_a_prompt_without_room_is_refused_before_anything_is_asked(monkeypatch):
    from tasks import infer
    from tasks.models.config import ErrorBudget, RunLimits

    monkeypatch.setattr(infer, "probe", lambda *_: pytest.fail("asked"))
    model = ModelConfig(name="small", max_length=4096, config={"base_url": "http://127.0.0.1:9/v1"})
    setup = infer.InferSetup(
        model=model, sampling=SampleParams(max_tokens=32768), errors=ErrorBudget(), limits=RunLimits(),
        prices={}, base_dir=".",
    )  # fmt: skip
    with pytest.raises(
        ModelError, match=r"max_length 4096 leaves no room .* lower max_tokens or raise max_length"
    ):
        infer.probe_model(setup, "generate")
