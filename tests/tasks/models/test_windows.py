"""Token windows: what is scored, once, and with how much context."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.models.errors import BadRequest
from tasks.models.providers.openai.tokens import rolling_spans, split_pair, text_span, token_span
from tasks.models.tokenizers import ByteTokenizer

BYTES = ByteTokenizer()


class Characters:
    """A token a character, so that a token's id tells its place in the text."""

    prefix = 0

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]


@given(length=st.integers(1, 300), max_length=st.integers(4, 60))
def test_every_token_of_a_document_is_scored_once_with_the_most_context(length, max_length):
    document = "".join(chr(1_000 + place) for place in range(length))
    spans = rolling_spans(Characters(), document, max_length)
    scored = [token for span in spans for token in span.prompt[span.start :]]
    assert scored == [ord(character) for character in document]
    assert all(len(span.prompt) <= max_length - 1 for span in spans)
    assert spans[0].prompt[0] == Characters.prefix
    # Later windows continue the text: what stands before is what came before. Only a last, shorter one is
    # given more than one token of it, as lm-evaluation-harness fills it up to one window.
    for before, span in pairwise(spans):
        context = span.prompt[: span.start]
        assert context == tuple(
            scored[scored.index(span.prompt[span.start]) - len(context) :][: len(context)]
        )
        assert before.prompt[-1] == context[-1]


def test_windows_are_those_of_lm_evaluation_harness():
    # max_length 6: one token is left for generation and one is context, so a window scores four. Figures from
    # lm_eval.utils.get_rolling_token_windows and make_disjoint_window (0.4.13) for ten tokens.
    document = "".join(chr(place) for place in range(1, 11))
    spans = rolling_spans(Characters(), document, 6)
    assert [(span.prompt, span.start) for span in spans] == [
        ((0, 1, 2, 3, 4), 1),
        ((4, 5, 6, 7, 8), 1),
        ((6, 7, 8, 9, 10), 3),
    ]


def test_an_empty_document_has_no_windows():
    assert rolling_spans(BYTES, "", 10) == []


@pytest.mark.parametrize(
    ("context", "continuation", "expected"),
    [
        ("The sky is", " blue", ("The sky is", " blue")),
        ("The sky is ", "blue", ("The sky is", " blue")),
        ("The sky is \n ", "blue", ("The sky is", " \n blue")),
        ("", "blue", ("", "blue")),
    ],
)
def test_white_space_moves_to_the_continuation(context, continuation, expected):
    assert split_pair(context, continuation) == expected
    span = text_span(context, continuation)
    assert (span.prompt[: span.start], span.prompt[span.start :]) == expected


def test_a_pair_is_the_whole_encoded_once_and_cut_after_the_contexts_tokens():
    span = token_span(BYTES, "ab ", "cd", 2_048)
    assert span.prompt == tuple(b"ab cd")
    assert span.start == 2


def test_an_empty_context_is_the_prefix_token():
    span = token_span(BYTES, "", "cd", 2_048)
    assert (span.prompt, span.start) == ((256, *b"cd"), 1)


def test_too_long_a_context_is_cut_on_the_left():
    span = token_span(BYTES, "abcdefgh", "ij", 6)
    assert (span.prompt, span.start) == (tuple(b"fghij"), 3)


@pytest.mark.parametrize(("context", "continuation"), [("ab", "cdefgh"), ("  ", "x")])
def test_what_leaves_no_context_is_refused(context, continuation):
    with pytest.raises(BadRequest):
        token_span(BYTES, context, continuation, 6)
