"""Log-likelihoods over real HTTP, against the language model asked directly."""

import math
import re
from dataclasses import replace

import pytest

from tasks.models.answers.journal import decode, encode
from tasks.models.config import ModelConfig
from tasks.models.connection import probe
from tasks.models.demo.answering import BOS, log_distribution, score
from tasks.models.demo.options import Faults
from tasks.models.errors import BadRequest, MalformedBody, ModelError
from tasks.models.providers.openai.echo import EchoMode, Likelihood
from tasks.models.providers.openai.tokens import (
    GeneratedTokens,
    ScoredTokens,
    Span,
    scored,
    span_ends,
    sum_of,
)
from tasks.models.records import Reply, Request
from tasks.models.respond import respond
from tasks.models.tokenizers import ByteTokenizer
from tasks.models.wire import json_object
from tasks.store.keys import text_value

CONTEXTS = ["The capital of France is", "The opposite of hot is ", "Bees make"]
CONTINUATIONS = [" Paris", " cold", " honey äöü"]


def span_likelihood(
    tokens: ScoredTokens, generated: GeneratedTokens, span: Span
) -> tuple[float, bool | None]:
    return sum_of(tokens, *span_ends(tokens, generated, span))


def expected(context: str, continuation: str) -> tuple[float, bool]:
    """From the model itself: the continuation's bytes, after BOS where there is no context."""
    kept = context.rstrip()
    tail = (context[len(kept) :] + continuation).encode()
    tokens = [*kept.encode(), *tail] if kept else [BOS, *tail]
    values = score(tokens)[-len(tail) :]
    return sum(value for value, _, _ in values), all(value >= best for value, _, best in values)


def check(outcome, contexts=CONTEXTS, alone=()) -> None:
    for row, context in zip(outcome.rows, contexts, strict=True):
        assert row["status"] == "ok", row["error"]
        reference = [expected(context, continuation) for continuation in CONTINUATIONS]
        assert row["lls"] == pytest.approx([ll for ll, _ in reference], abs=1e-9)
        assert row["is_greedy"] == [greedy for _, greedy in reference]
        if alone:
            assert row["unconditional_lls"] == pytest.approx(
                [expected("", text)[0] for text in alone], abs=1e-9
            )


def test_the_language_model_is_a_distribution():
    for context in (b"", b"The ca", b"\xff\x00"):
        assert sum(math.exp(value) for value in log_distribution(context)) == pytest.approx(1)


@pytest.mark.parametrize(
    ("settings", "faults"),
    [
        ({}, Faults()),
        ({"batch_size": 4}, Faults()),
        ({"client": "openai"}, Faults()),
        ({}, Faults(refuse_max_tokens_0=True)),
        ({}, Faults(no_text_offset=True)),
    ],
    ids=["plain", "batches", "official client", "no max_tokens 0", "no text_offset"],
)
def test_text_prompts_need_no_tokenizer(bench, served, endpoint, pairs, settings, faults):
    continuations = CONTINUATIONS if not faults.no_text_offset else CONTINUATIONS[:2]
    outcome = bench.ask(endpoint(served(faults), **settings), pairs(CONTEXTS, continuations))
    if faults.no_text_offset:
        assert outcome.column("status") == ["ok"] * 3
        assert outcome.rows[0]["lls"][0] == pytest.approx(expected(CONTEXTS[0], CONTINUATIONS[0])[0])
    else:
        check(outcome)


@pytest.mark.parametrize(
    "faults",
    [Faults(), Faults(drop_bos=True), Faults(no_text_offset=True)],
    ids=["plain", "BOS dropped", "no text_offset"],
)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_token_ids_give_the_same_and_the_unconditional_ones_too(
    bench, served, endpoint, pairs, faults, batch_size
):
    model = endpoint(served(faults), tokenizer="bytes", batch_size=batch_size)
    outcome = bench.ask(model, pairs(CONTEXTS, CONTINUATIONS, alone=CONTINUATIONS))
    check(outcome, alone=CONTINUATIONS)


def test_equal_unconditional_continuations_are_asked_once(bench, served, endpoint, pairs):
    serving = served()
    outcome = bench.ask(
        endpoint(serving, tokenizer="bytes"), pairs(CONTEXTS, CONTINUATIONS, alone=CONTINUATIONS)
    )
    assert outcome.tally.sent == 9 + 3
    assert outcome.tally.cached == 6


def test_the_embedded_model_needs_no_settings(bench, pairs):
    check(bench.ask(ModelConfig(name="demo", type="demo"), pairs(CONTEXTS, CONTINUATIONS)))


def test_without_tokenizer_a_first_token_without_log_probability_is_an_error_and_not_a_zero(
    bench, served, endpoint, pairs
):
    outcome = bench.ask(endpoint(served()), pairs(["x"], [" y"], alone=[" Paris"]))
    assert outcome.rows[0]["status"] == "infra_error"
    assert outcome.rows[0]["lls"] is None
    assert "tokenizer" in outcome.rows[0]["error"]


def test_rolling_scores_every_byte_of_a_long_document(bench, served, endpoint, batch_of):
    document = "The sun rises in the east and sets in the west. " * 12
    rows = batch_of([{"kind": "rolling", "prompts": [""], "continuations": [document]}])
    whole = bench.ask(endpoint(served(), tokenizer="bytes"), rows)
    assert whole.rows[0]["lls"] == pytest.approx([expected("", document)[0]])
    # In windows of 99 bytes only those near a window's start have less context than they had.
    serving = served()
    pieces = bench.ask(endpoint(serving, tokenizer="bytes", max_length=101), rows)
    assert serving.stats()["received"] == 1 + math.ceil(len(document) / 99)
    assert pieces.rows[0]["lls"][0] < 0
    assert pieces.rows[0]["lls"][0] == pytest.approx(whole.rows[0]["lls"][0], rel=0.5)


@pytest.mark.parametrize("broken", [1, 2, 3])
def test_a_window_that_was_broken_once_is_asked_again_whichever_it_was(bench, batch_of, script, broken):
    """Every token has the log-probability -1."""
    seen: list[int] = []

    def answer(asked):
        ids, generated = asked.body["prompt"][0], asked.body["max_tokens"]
        count = len(ids) + generated
        values: list[float | None] = [None, *[-1.0] * (count - 1)]
        if len(seen) == broken:  # the first asked for is a probe
            values[3] = 1.0
        seen.append(len(ids))
        listed = {"tokens": ["x"] * count, "token_logprobs": values, "text_offset": [0] * count}
        return 200, {}, {"choices": [{"index": 0, "text": "", "logprobs": listed}]}

    config = {"model": "m", "base_url": script(answer), "api": "completions", "max_retries": 1}
    fields = {"name": "a", "config": config, "tokenizer": "bytes", "max_length": 20}
    document = "abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstu"
    rows = batch_of([{"kind": "rolling", "prompts": [""], "continuations": [document]}])
    outcome = bench.ask(ModelConfig.model_validate(fields), rows)
    assert outcome.rows[0]["lls"] == [-float(len(document))], outcome.rows[0]["error"]
    assert (outcome.tally.attempts, outcome.tally.retries) == (8, 1), "four windows, twice"


def test_an_empty_document_has_the_log_likelihood_0(bench, served, endpoint, batch_of):
    documents = ["", "The sun rises in the east."]
    rows = batch_of([{"kind": "rolling", "prompts": [""], "continuations": [text]} for text in documents])
    serving = served()
    outcome = bench.ask(endpoint(serving, tokenizer="bytes"), rows)
    assert outcome.column("status") == ["ok", "ok"]
    assert [row["lls"] for row in outcome.rows] == [[0.0], [pytest.approx(expected("", documents[1])[0])]]
    assert serving.stats()["received"] == 2  # a probe, and one document


def test_faults_do_not_change_a_likelihood(bench, served, endpoint, pairs):
    faults = Faults(error_500=0.1, error_429=0.1, cut=0.1, malformed=0.1, retry_after=0.02, seed=5)
    model = endpoint(served(faults), tokenizer="bytes", batch_size=2)
    check(bench.ask(model, pairs(CONTEXTS * 8, CONTINUATIONS)), contexts=CONTEXTS * 8)


def test_one_prompt_that_is_refused_does_not_spoil_its_batch(bench, served, endpoint, pairs):
    serving = served(Faults(fail_prompts="poison"))
    model = endpoint(serving, batch_size=6)
    outcome = bench.ask(model, pairs(["Bees make", "some poison"], CONTINUATIONS))
    assert outcome.column("status") == ["ok", "infra_error"]
    assert outcome.tally.attempts == serving.stats()["received"] - 1 == 7, (
        "all together, then each; one probe"
    )
    assert outcome.tally.sent == 6


def test_a_server_that_takes_no_ids_is_asked_with_text(bench, served, endpoint, pairs):
    check(
        bench.ask(
            endpoint(served(Faults(refuse_ids=True)), tokenizer="bytes"), pairs(CONTEXTS, CONTINUATIONS)
        )
    )


def test_another_tokenizer_than_the_models_is_refused(served, endpoint, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "The": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    serving = served(Faults(refuse_ids=True))
    with pytest.raises(ModelError, match="tokenizer"):
        probe(endpoint(serving, tokenizer=str(tmp_path)), kind="loglikelihood")


@pytest.mark.parametrize("fault", ["refuse_echo", "ignore_echo"])
def test_a_server_without_echo_is_refused_before_the_run(served, endpoint, fault):
    model = endpoint(served(Faults(**{fault: True})))
    assert probe(model).warning is None
    with pytest.raises(ModelError, match="echo"):
        probe(model, kind="loglikelihood")


def test_a_chat_has_no_likelihood(bench, served, endpoint, batch_of):
    rows = batch_of([{"kind": "loglikelihood", "chat": True, "prompts": ["[]"], "continuations": [" a"]}])
    outcome = bench.ask(endpoint(served()), rows)
    assert outcome.rows[0]["status"] == "infra_error"


ONE, NONE = GeneratedTokens(1), GeneratedTokens(0)


def lists(tokens, values, offsets=None, tops=None):
    return {
        "logprobs": {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}
    }


def test_a_bos_in_the_list_does_not_shift_the_boundary():
    prompt = Span("ab cd", 2)
    plain = lists(["ab", " cd", "x"], [None, -1.0, -9.0], [0, 2, 5])
    with_bos = lists(["<s>", "ab", " cd", "x"], [None, -2.0, -1.0, -9.0], [0, 3, 5, 8])
    uncounted = lists(["<s>", "ab", " cd", "x"], [None, -2.0, -1.0, -9.0], [0, 0, 2, 5])
    for choice in (plain, with_bos, uncounted):
        assert span_likelihood(scored(choice, "echo"), ONE, prompt)[0] == -1.0


@pytest.mark.parametrize(
    "values",
    [[None, -2.0, -1.0, -9.0], [-2.0, -1.0, -9.0], [None, -7.0, -2.0, -1.0, -9.0]],
    ids=["as sent", "BOS dropped", "BOS added"],
)
def test_ids_find_their_place_when_a_bos_was_dropped_or_added(values):
    choice = lists(["t"] * len(values), values)
    assert span_likelihood(scored(choice, "echo"), ONE, Span((0, 5, 6), 1))[0] == -3.0


@pytest.mark.parametrize("counted", [None, 0, 1])
def test_a_list_as_long_as_was_asked_for_is_taken_whatever_the_server_counts(counted):
    # An end token is listed and, on some servers, not counted: nothing was added in front for that.
    choice = lists(["t"] * 4, [None, -2.0, -1.0, -9.0])
    assert span_likelihood(scored(choice, "echo"), GeneratedTokens(1, counted), Span((0, 5, 6), 1)) == (
        -3.0,
        None,
    )


@pytest.mark.parametrize("counted", [0, 1])
def test_a_generated_token_that_is_not_listed_is_not_missed(counted):
    choice = lists(["t"] * 3, [None, -2.0, -1.0])
    assert span_likelihood(scored(choice, "echo"), GeneratedTokens(1, counted), Span((0, 5, 6), 1))[0] == -3.0


def test_another_number_of_tokens_is_an_error():
    with pytest.raises(BadRequest, match="tokenizer"):
        span_likelihood(scored(lists(["t"] * 7, [-1.0] * 7), "echo"), ONE, Span((0, 5, 6), 1))


def test_greedy_means_that_no_other_token_was_likelier():
    tops = [None, {"b": -1.0}, {"c": -0.5, "d": -2.0}]
    greedy = lists(["a", "b"], [None, -1.0], [0, 1], tops[:2])
    not_greedy = lists(["a", "b", "d"], [None, -1.0, -2.0], [0, 1, 2], tops)
    assert span_likelihood(scored(greedy, "echo"), NONE, Span("ab", 1)) == (-1.0, True)
    assert span_likelihood(scored(not_greedy, "echo"), NONE, Span("abd", 1)) == (-3.0, False)


def test_vllm_prompt_logprobs_are_read():
    choice = {
        "prompt_logprobs": [
            None,
            {"5": {"logprob": -1.5, "rank": 1, "decoded_token": "a"}},
            {"6": {"logprob": -2.5, "rank": 3, "decoded_token": "b"}, "7": {"logprob": -0.1, "rank": 1}},
        ]
    }
    tokens = scored(choice, "prompt_logprobs")
    assert span_likelihood(tokens, NONE, Span((0, 5, 6), 1)) == (-4.0, False)
    assert span_likelihood(tokens, NONE, Span((0, 5, 6), 2)) == (-2.5, False)


@pytest.mark.parametrize(
    ("choice", "source"),
    [
        ("x", "echo"),
        (lists(["a"], ["-1.0"]), "echo"),
        (lists(["a"], [-1.0], tops=[{"a": "x"}]), "echo"),
        ({"prompt_logprobs": ["x"]}, "prompt_logprobs"),
        ({"prompt_logprobs": [{"5": -1.0}]}, "prompt_logprobs"),
    ],
)
def test_log_probabilities_of_another_shape_are_malformed(choice, source):
    with pytest.raises(MalformedBody):
        scored(choice, source)


@pytest.mark.parametrize(
    "choice",
    [
        lists([5, 6, 7], [None, -1.0, -9.0]),
        lists(5, [None, -1.0, -9.0]),
        lists(["a"], [None, -1.0, -9.0], ["0", 1, None]),
        lists(None, [None, -1.0, -9.0], [0, 1, None]),
    ],
)
def test_texts_and_offsets_that_cannot_be_used_are_not_needed_for_ids(choice):
    assert span_likelihood(scored(choice, "echo"), ONE, Span((5, 6), 1))[0] == -1.0
    with pytest.raises(BadRequest, match="name a tokenizer"):
        span_likelihood(scored(choice, "echo"), ONE, Span("ab", 1))


def test_an_impossible_token_makes_its_text_impossible():
    body = b'{"choices": [{"logprobs": {"token_logprobs": [null, -Infinity, -1.5, -9.0]}}]}'
    reply = Reply(json_object(body), 0.1)
    likelihood = Likelihood("m", EchoMode(1, "echo", ids=True), {}, ByteTokenizer())
    (answer,) = likelihood.answers([Request(b"k", "loglikelihood", "a", "bc")], [reply], 1)
    assert (answer.status, answer.ll) == ("ok", -math.inf)
    kept = decode(encode(replace(answer, key=bytes(32))))  # JSON has no such number
    assert (
        likelihood.read(Request(b"k", "loglikelihood", "a", "bc"), text_value(kept.reply_json)).ll
        == -math.inf
    )


def test_choices_of_another_shape_are_malformed():
    asking = Likelihood("m", EchoMode(1, "echo"), {}, None, None, 2)
    requests = [Request(b"k", "loglikelihood", "a", " b")] * 2
    for choices in (["x", "y"], [{"index": "0"}, {"index": "1"}], [{"index": None}, {}]):
        with pytest.raises(MalformedBody):
            asking.answers(requests, [Reply({"choices": choices}, 0.5)], 1)


class Merging:
    """Two letters a token where they go together: "ab" is one, so that "b" behind "a" is no token."""

    prefix = 0
    end = None

    def encode(self, text):
        return [1_000 + ord(part[0]) if len(part) == 2 else ord(part) for part in re.findall("ab|.", text)]

    def decode(self, ids):
        return "".join(f"{chr(token - 1_000)}b" if token >= 1_000 else chr(token) for token in ids)


@pytest.mark.parametrize(
    ("kind", "prompt", "continuation"),
    [("loglikelihood", "xa", "b"), ("loglikelihood", "x", ""), ("rolling", "", "")],
    ids=["joined to the context", "empty", "empty document"],
)
def test_what_has_no_token_of_its_own_has_log_likelihood_0_and_is_not_asked(kind, prompt, continuation):
    likelihood = Likelihood("m", EchoMode(1, "echo", ids=True), {}, Merging())
    request = Request(b"k", kind, prompt, continuation)
    assert likelihood.calls([request]) == []
    (answer,) = likelihood.answers([request], [], 0)
    assert (answer.status, answer.ll, answer.is_greedy) == ("ok", 0.0, True)


def test_an_empty_choice_is_answered_without_the_server(bench, served, endpoint, pairs):
    serving = served()
    outcome = bench.ask(endpoint(serving), pairs(["Bees make"], ["", " honey"]))
    assert outcome.rows[0]["lls"] == pytest.approx([0.0, expected("Bees make", " honey")[0]])
    assert outcome.rows[0]["is_greedy"][0] is True


def test_greediness_of_unconditional_continuations_is_kept(bench, served, endpoint, pairs):
    outcome = bench.ask(
        endpoint(served(), tokenizer="bytes"), pairs(CONTEXTS[:1], CONTINUATIONS, alone=CONTINUATIONS)
    )
    greedy = [expected("", text)[1] for text in CONTINUATIONS]
    assert outcome.rows[0]["unconditional_greedy"] == greedy


def test_prompt_logprobs_list_no_generated_token_though_one_is_counted():
    likelihood = Likelihood("m", EchoMode(1, "prompt_logprobs", ids=True), {}, Merging())
    positions = [None, *({"9": {"logprob": value, "rank": 2}} for value in (-1.0, -2.0, -4.0))]
    body = {
        "choices": [{"index": 0, "text": "z", "prompt_logprobs": positions}],
        "usage": {"prompt_tokens": 4, "completion_tokens": 1},
    }
    (answer,) = likelihood.answers([Request(b"k", "loglikelihood", "xy", "zz")], [Reply(body, 0.1)], 1)
    assert (answer.ll, answer.is_greedy) == (-6.0, False)


def test_offsets_that_count_pieces_of_characters_do_not_shift_the_boundary():
    tokens = ["owl ", "\ufffd", "\ufffd", "\ufffd", "\ufffd", " yes", "x"]
    values = [None, -10.0, -20.0, -30.0, -40.0, -1.5, -9.0]
    running = [0, 4, 5, 6, 7, 8, 12]
    naive = [0, 4, 5, 5, 5, 5, 9]
    for offsets in (running, naive, None):
        choice = lists(tokens, values, offsets)
        assert span_likelihood(scored(choice, "echo"), ONE, Span("owl 🦉 yes", 5))[0] == -1.5


def test_tokens_that_do_not_tell_where_a_text_goes_on_are_an_error():
    # Spaces are left out of the tokens' texts, and there are no offsets.
    choice = lists(["owl", "yes", "x"], [None, -1.5, -9.0])
    with pytest.raises(BadRequest, match="name a tokenizer"):
        span_likelihood(scored(choice, "echo"), ONE, Span("owl yes", 3))


@pytest.mark.parametrize(
    ("offsets", "counted"),
    [([0, 3, 9], None), ([0, 2, 5], None), ([0, 2, 5], 1)],
    ids=["too far", "too short", "all before the end"],
)
def test_offsets_in_another_text_than_the_one_sent_are_an_error(offsets, counted):
    # The tokenizer has no letter for the é and says "<unk>", or loses it: places in that text are others.
    choice = lists(["owl", "<unk>", "x"], [None, -1.5, -9.0], offsets)
    with pytest.raises(BadRequest, match="name a tokenizer"):
        span_likelihood(scored(choice, "echo"), GeneratedTokens(1, counted), Span("owl é y", 3))


def test_offsets_alone_tell_where_a_text_goes_on():
    choice = lists(["owl", "yes", "x"], [None, -1.5, -9.0], [0, 3, 7])
    assert span_likelihood(scored(choice, "echo"), ONE, Span("owl yes", 3))[0] == -1.5
    unlisted = lists(["owl", "yes"], [None, -1.5], [0, 3])
    assert span_likelihood(scored(unlisted, "echo"), GeneratedTokens(1, 0), Span("owl yes", 3))[0] == -1.5


SPACED = ["The opposite of hot is ", "Bees make \n"]


def test_a_kept_space_is_no_part_of_what_is_scored(bench, served, endpoint, batch_of):
    rows = [
        {"kind": "loglikelihood", "prompts": [text], "continuations": ["cold"], "keeps_space": True}
        for text in SPACED
    ]
    outcome = bench.ask(endpoint(served(), tokenizer="bytes"), batch_of(rows))
    for row, context in zip(outcome.rows, SPACED, strict=True):
        values = score([*context.encode(), *b"cold"])[-len(b"cold") :]
        assert row["lls"] == pytest.approx([sum(value for value, _, _ in values)], abs=1e-9)
        assert row["token_lengths"] == [len(b"cold")]


def test_a_kept_space_has_another_key_and_other_requests_keep_theirs(bench, served, endpoint, batch_of):
    model = endpoint(served(), tokenizer="bytes")
    row = {"kind": "loglikelihood", "prompts": [SPACED[0]], "continuations": ["cold"]}
    assert bench.ask(model, batch_of([row])).tally.sent == 1
    assert bench.ask(model, batch_of([{**row, "keeps_space": False}])).tally.sent == 0
    assert bench.ask(model, batch_of([{**row, "keeps_space": True}])).tally.sent == 1


def test_a_kept_space_needs_the_tokenizer(bench, served, endpoint, batch_of):
    row = {"kind": "loglikelihood", "prompts": [SPACED[0]], "continuations": ["cold"], "keeps_space": True}
    (refused,) = bench.ask(endpoint(served()), batch_of([row])).rows
    assert refused["status"] == "infra_error"
    assert "keep_trailing_space needs the model's tokenizer:" in refused["error"]


def test_a_kept_space_is_a_token_of_its_own_whatever_the_tokenizer_joins():
    class Joining(ByteTokenizer):
        """A space and the letter behind it are one token, as in most vocabularies."""

        def encode(self, text: str) -> list[int]:
            return [1_000 + ord(part[1]) if len(part) == 2 else ord(part) for part in re.findall(" ?.", text)]

    likelihood = Likelihood("m", EchoMode(0, "echo", ids=True), {}, Joining())
    moved = Request(b"", "loglikelihood", "a: ", "b")
    (call,) = likelihood.calls([moved])
    assert call.body["prompt"] == [(97, 58, 1_098)]
    (call,) = likelihood.calls([replace(moved, keeps_space=True)])
    assert call.body["prompt"] == [(97, 58, 32, 98)]


def test_progress_knows_how_many_likelihoods_are_asked_for(bench, served, endpoint, pairs):
    told = []
    model = endpoint(served(Faults()))
    responded = respond(
        model, pairs(CONTEXTS, CONTINUATIONS), bench.answers, bench.options(), lambda now: told.append(now)
    )
    list(responded.batches)
    assert (told[-1].done, told[-1].expected) == (9, 9)
