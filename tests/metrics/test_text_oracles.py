"""BLEU, chrF, TER and ROUGE against sacrebleu and rouge-score, on random Unicode and on every option."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from metrics.text import bleu as bleu_statistics
from metrics.text import chrf as chrf_statistics
from metrics.text import inputs as batching
from metrics.text import ngrams, rouge
from metrics.text import ter as ter_statistics
from metrics.text.bleu import bleu, bleu_aggregation, sentence_bleu
from metrics.text.chrf import chrf, chrf_aggregation, f_score
from metrics.text.ter import ter, ter_aggregation

# What the libraries treat in a way of their own, among plain text and anything else that Unicode has.
TRICKY = st.sampled_from(
    [
        "<skipped>",
        "&quot;",
        "&amp;lt;",
        ".",
        ",",
        "1,5",
        "3.",
        ".,",
        "-",
        "5-",
        "é",
        "漢字",
        "İ",
        "ſ",
        "(hi)",
        "don't",
        "the",
        "a",
        "cat",
        "cats",
        "-\n",
        "\n",
        " ",
        "  ",
        "\u00a0",
        "\u2003",
        "\x1c",
        "\0",
        "a\0",
        "\r\n",
        "\u212a",  # the Kelvin sign, k in lower case
        "ß",
        "😀",
        "𝔘",
        "seventh",
        "eighteen",
        "eighteenth",
        "RELATIONAL",
        "internationality",
        "internationalities",
        "\ud800",
        "x" * 30,
    ]
)
TEXT = st.lists(st.one_of(TRICKY, st.text(max_size=6)), max_size=12).map("".join)
DOCUMENTS = st.lists(st.tuples(st.lists(TEXT, min_size=1, max_size=3), TEXT), min_size=1, max_size=5)
SAFE = DOCUMENTS.map(
    lambda documents: [
        ([gold.replace("\ud800", "?") for gold in golds], text.replace("\ud800", "?"))
        for golds, text in documents
    ]
)


@pytest.fixture(scope="module", params=["as it is", "cut small"])
def _limits(request: Any) -> Iterator[None]:
    """What is worked on at once: as it is, and so little that five documents need several goes."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "cut small":
            patch.setattr(batching, "_DOCUMENTS", 3)
            patch.setattr(batching, "_CHARACTERS", 40)
            patch.setattr(ngrams, "_BLOCK", 8)
            patch.setattr(rouge, "_FEW", 1)
            patch.setattr(rouge, "_LONG", 5)
        yield


def _columns(documents: Any) -> tuple[list[list[str]], list[str]]:
    return [golds for golds, _ in documents], [text for _, text in documents]


def _streams(references: list[list[str]]) -> Any:
    return bleu_statistics.transposed(references)


@pytest.mark.usefixtures("_limits")
@given(DOCUMENTS, st.booleans(), st.integers(1, 5))
def test_bleu_statistics_are_sacrebleus(documents: Any, lowercase: bool, order: int) -> None:
    references, texts = _columns(documents)
    fast = bleu_statistics.bleu_statistics(references, texts, "13a", lowercase, order)
    np.testing.assert_array_equal(
        fast, bleu_statistics.by_sacrebleu(references, texts, "13a", lowercase, order)
    )


@given(DOCUMENTS, st.sampled_from(["exp", "floor", "add-k", "none"]), st.booleans())
def test_corpus_bleu_is_sacrebleus_to_the_last_bit(documents: Any, smooth: str, effective: bool) -> None:
    references, texts = _columns(documents)
    aggregation = bleu_aggregation(smooth_method=smooth, effective_order=effective)
    scorer = sacrebleu.BLEU(smooth_method=smooth, effective_order=effective, force=True)
    own = aggregation.value(bleu(references, texts).statistics, None)
    assert own == scorer.corpus_score(texts, _streams(references)).score


@given(DOCUMENTS, st.sampled_from(["exp", "floor", "add-k", "none"]))
def test_sentence_bleu_is_sacrebleus(documents: Any, smooth: str) -> None:
    references, texts = _columns(documents)
    own = sentence_bleu(references, texts, smooth_method=smooth)
    scorer = sacrebleu.BLEU(smooth_method=smooth, effective_order=True)
    expected = [
        scorer.sentence_score(text, golds).score for golds, text in zip(references, texts, strict=True)
    ]
    np.testing.assert_array_equal(own, expected)


@pytest.mark.parametrize("tokenize", ["none", "zh", "intl", "char"])
def test_other_tokenisers_go_through_sacrebleu(tokenize: str) -> None:
    references, texts = [["Ein Haus, 3.5 m; 漢字 da!"]], ["Das Haus, 3,5 m 漢字."]
    own = bleu_aggregation().value(bleu(references, texts, tokenize=tokenize).statistics, None)
    assert own == sacrebleu.corpus_bleu(texts, _streams(references), tokenize=tokenize).score


@given(DOCUMENTS, st.sampled_from(["exp", "floor", "add-k", "none"]), st.booleans())
def test_bleu_of_many_sums_at_once_is_bleu_of_each(documents: Any, smooth: str, effective: bool) -> None:
    references, texts = _columns(documents)
    aggregation = bleu_aggregation(smooth_method=smooth, effective_order=effective)
    rows = bleu(references, texts).statistics
    assert rows is not None
    each = [aggregation.of_total(row, 1.0) for row in rows]
    np.testing.assert_allclose(aggregation.of_totals(rows, 1.0), each, rtol=1e-12)


def _chrf_oracle(references: Any, texts: Any, word_order: int, lowercase: bool, whitespace: bool) -> Any:
    scorer = sacrebleu.CHRF(word_order=word_order, lowercase=lowercase, whitespace=whitespace)
    return np.array(scorer._extract_corpus_statistics(texts, _streams(references)), dtype=np.float64)


@pytest.mark.usefixtures("_limits")
@given(DOCUMENTS, st.sampled_from([0, 1, 2]), st.booleans(), st.booleans())
def test_chrf_statistics_are_sacrebleus(
    documents: Any, words: int, lowercase: bool, whitespace: bool
) -> None:
    references, texts = _columns(documents)
    options = chrf_statistics.ChrfOptions(6, words, lowercase, whitespace)
    own = chrf_statistics.chrf_statistics(references, texts, options, f_score(6 + words, 2, False))
    np.testing.assert_array_equal(own, _chrf_oracle(references, texts, words, lowercase, whitespace))


@given(DOCUMENTS, st.sampled_from([0, 2]), st.booleans())
def test_corpus_chrf_is_sacrebleus_to_the_last_bit(documents: Any, words: int, smoothing: bool) -> None:
    references, texts = _columns(documents)
    own = chrf_aggregation(word_order=words, eps_smoothing=smoothing).value(
        chrf(references, texts, word_order=words, eps_smoothing=smoothing).statistics, None
    )
    scorer = sacrebleu.CHRF(word_order=words, eps_smoothing=smoothing)
    assert own == scorer.corpus_score(texts, _streams(references)).score


def test_documents_with_many_distinct_characters_have_sacrebleus_counts() -> None:
    rng = random.Random(5)
    texts = ["".join(chr(rng.randrange(0x4E00, 0x9000)) for _ in range(1500)) for _ in range(3)]
    references = [[text[:700] + texts[0][:300]] for text in texts]
    own = chrf_statistics.chrf_statistics(
        references, texts, chrf_statistics.ChrfOptions(6, 2), f_score(8, 2, False)
    )
    np.testing.assert_array_equal(own, _chrf_oracle(references, texts, 2, False, False))


def test_documents_with_many_distinct_words_have_sacrebleus_counts() -> None:
    rng = random.Random(6)
    texts = [" ".join(str(rng.randrange(10**9)) for _ in range(3000)) for _ in range(3)]
    references = [[text[:9000]] for text in texts]
    fast = bleu_statistics.bleu_statistics(references, texts, "13a", False, 5)
    np.testing.assert_array_equal(fast, bleu_statistics.by_sacrebleu(references, texts, "13a", False, 5))
    options = chrf_statistics.ChrfOptions(2, 6)
    own = chrf_statistics.chrf_statistics(references, texts, options, f_score(8, 2, False))
    oracle = sacrebleu.CHRF(char_order=2, word_order=6)._extract_corpus_statistics(
        texts, _streams(references)
    )
    np.testing.assert_array_equal(own, np.array(oracle, dtype=np.float64))


@pytest.mark.usefixtures("_limits")
@given(DOCUMENTS, st.sampled_from(["rouge1", "rouge2", "rougeL", "rougeLsum"]), st.booleans())
def test_rouge_is_rouge_scores(documents: Any, kind: str, stemming: bool) -> None:
    references, texts = _columns(documents)
    scorer = RougeScorer([kind], use_stemmer=stemming)
    expected = [scorer.score_multi(golds, text)[kind] for golds, text in zip(references, texts, strict=True)]
    np.testing.assert_array_equal(rouge.rouge_table(kind, references, texts, stemming), np.array(expected))


def _written(rng: random.Random, documents: int) -> tuple[list[list[str]], list[str]]:
    """Texts of up to 300 words, some empty, each with one or two references that share most words."""
    vocabulary = ["".join(rng.choices("abcdeilnorst", k=rng.randint(1, 18))) for _ in range(400)]
    vocabulary += ["don't", "3.5", "1,000", "U.S.", "naïve", "Straße", "(see)", "running", "relational"]
    weights = [1 / (rank + 1) for rank in range(len(vocabulary))]
    references, texts = [], []
    for _ in range(documents):
        words = rng.choices(vocabulary, weights, k=rng.choice((0, 3, 40, 63, 64, 65, 128, 129, 300)))
        golds = [
            " ".join(word if rng.random() < 0.7 else rng.choice(vocabulary) for word in words)
            for _ in range(rng.randint(1, 2))
        ]
        references.append([gold.capitalize() + "." for gold in golds])
        texts.append(" ".join(words))
    return references, texts


@pytest.mark.parametrize("kind", ["rouge1", "rouge2", "rougeL"])
@pytest.mark.parametrize("stemming", [False, True])
def test_written_documents_have_rouge_scores_numbers(kind: str, stemming: bool) -> None:
    references, texts = _written(random.Random(9), 150)
    expected = rouge.by_rouge_score(kind, references, texts, stemming=stemming)
    np.testing.assert_array_equal(rouge.rouge_table(kind, references, texts, stemming), expected)


def test_written_documents_have_sacrebleus_statistics() -> None:
    references, texts = _written(random.Random(10), 150)
    np.testing.assert_array_equal(
        bleu_statistics.bleu_statistics(references, texts, "13a", False, 4),
        bleu_statistics.by_sacrebleu(references, texts, "13a", False, 4),
    )
    own = chrf_statistics.chrf_statistics(
        references, texts, chrf_statistics.ChrfOptions(6, 2), f_score(8, 2, False)
    )
    np.testing.assert_array_equal(own, _chrf_oracle(references, texts, 2, False, False))


def test_rouge_in_threads_is_rouge_alone() -> None:
    batches = [_written(random.Random(seed), 20) for seed in range(4)]
    work = [
        (kind, references, texts, stemming)
        for kind in ("rouge1", "rouge2", "rougeL")
        for references, texts in batches
        for stemming in (False, True)
    ]
    alone = [rouge.rouge_table(*one) for one in work]
    rouge.clear_caches()
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda one: rouge.rouge_table(*one), work))
    for own, expected in zip(together, alone, strict=True):
        np.testing.assert_array_equal(own, expected)


WORDS = st.lists(st.sampled_from("abcdefg"), max_size=30)


@settings(max_examples=60)
@given(WORDS, WORDS, st.integers(0, 30))
def test_compiled_ter_counts_sacrebleus_edits(own: list[str], gold: list[str], cut: int) -> None:
    pytest.importorskip("numba")
    counter = ter_statistics.edit_counter()
    for hypothesis in (own, gold[cut:] + gold[:cut]):  # unrelated, and a shift of the reference
        assert counter(hypothesis, gold) == ter_statistics.by_sacrebleu(hypothesis, gold)


def test_compiled_ter_keeps_the_beam_and_the_limits_of_sacrebleu() -> None:
    pytest.importorskip("numba")
    rng = random.Random(8)
    counter = ter_statistics.edit_counter()
    for length, other in ((120, 120), (5, 150), (150, 5), (90, 60)):
        gold = [str(rng.randrange(12)) for _ in range(length)]
        own = [str(rng.randrange(12)) for _ in range(other)]
        assert counter(own, gold) == ter_statistics.by_sacrebleu(own, gold)


@settings(max_examples=40)
@given(SAFE, st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_corpus_ter_is_sacrebleus(
    documents: Any, normalized: bool, punct: bool, asian: bool, case: bool
) -> None:
    references, texts = _columns(documents)
    options = {"normalized": normalized, "no_punct": punct, "asian_support": asian, "case_sensitive": case}
    own = ter_aggregation().value(ter(references, texts, **options).statistics, None)
    theirs = sacrebleu.TER(**options).corpus_score(texts, _streams(references)).score
    assert own == pytest.approx(
        theirs, rel=1e-14, abs=0
    )  # from Python 3.12 on ``sum``, which they use, rounds once


@pytest.mark.parametrize("name", ["bleu", "chrf", "chrf++", "ter"])
def test_any_resample_scores_as_the_library_scores_it(name: str, build: Any) -> None:
    rng = random.Random(2)
    words = ["the", "cat", "sat", "on", "a", "mat", "12", "3.5,", "dog."]
    texts = [" ".join(rng.choices(words, k=rng.randint(0, 9))) for _ in range(30)]
    references = [[" ".join(rng.choices(words, k=rng.randint(1, 9)))] for _ in texts]
    metric = build(name)
    statistics = metric.evaluate(references, texts).statistics
    library = {"bleu": sacrebleu.BLEU(force=True), "chrf": sacrebleu.CHRF(), "ter": sacrebleu.TER()}
    scorer = {**library, "chrf++": sacrebleu.CHRF(word_order=2)}[name]
    for _ in range(10):
        picks = rng.choices(range(30), k=30)
        expected = scorer.corpus_score([texts[i] for i in picks], [[references[i][0] for i in picks]]).score
        assert metric.aggregation.value(statistics[picks], None) == pytest.approx(expected, abs=1e-9)
