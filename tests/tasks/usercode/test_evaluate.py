"""``evaluate.load`` in a benchmark's file: the library's arguments, keys and numbers, without the library.

The expected numbers are those of evaluate 0.4.6 (metrics of the same release) for the same calls.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metrics.errors import ConfigError
from tasks.usercode.evaluate import combine, load
from tasks.usercode.load import load_function

TEXTS = ["the cat sat on the mat", "a dog, barked!", ""]
GOLDS = [["the cat is on the mat", "the cat sat on a mat"], ["the dog barked"], ["nothing"]]


@pytest.mark.parametrize(
    ("name", "predictions", "references", "arguments", "expected"),
    [
        ("accuracy", [0, 1, 2], [0, 1, 1], {}, {"accuracy": 2 / 3}),
        ("accuracy", [0, 1, 2], [0, 1, 1], {"normalize": False}, {"accuracy": 2.0}),
        ("accuracy", [0, 1], [0, 0], {"sample_weight": [3, 1]}, {"accuracy": 0.75}),
        ("exact_match", ["Yes.", "no"], ["yes", "no"], {}, {"exact_match": 0.5}),
        (
            "exact_match", ["Yes.", "no"], ["yes", "no"],
            {"ignore_case": True, "ignore_punctuation": True}, {"exact_match": 1.0},
        ),
        ("f1", [0, 1, 1], [0, 1, 0], {}, {"f1": 2 / 3}),
        ("f1", [0, 1, 2], [0, 1, 1], {"average": "macro"}, {"f1": (1 + 2 / 3 + 0) / 3}),
        ("matthews_correlation", [0, 1, 1], [0, 1, 0], {}, {"matthews_correlation": 0.5}),
        ("wer", ["a b c", "d"], ["a x c d", "d"], {}, 2 / 5),
    ],
)  # fmt: skip
def test_a_metric_has_the_librarys_value(
    name: str, predictions: Any, references: Any, arguments: dict[str, Any], expected: Any
) -> None:
    found = load(name).compute(predictions=predictions, references=references, **arguments)
    assert found == pytest.approx(expected, abs=1e-12)


def test_squad_counts_what_was_not_answered_as_wrong() -> None:
    golds = [
        {"id": str(at), "answers": {"text": texts, "answer_start": [0]}} for at, texts in enumerate(GOLDS)
    ]
    given = [{"id": "0", "prediction_text": "The cat sat on a mat."}, {"id": "1", "prediction_text": "a dog"}]
    found = load("squad").compute(predictions=given, references=golds)
    assert found == pytest.approx({"exact_match": 100 / 3, "f1": 100 * (1 + 2 / 3) / 3})


def test_rouge_of_one_text_is_its_score_and_of_several_a_bootstrapped_middle() -> None:
    one = load("rouge").compute(predictions=TEXTS[:1], references=GOLDS[:1])
    assert list(one) == ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    assert one["rouge1"] == pytest.approx(10 / 12)
    each = load("rouge").compute(predictions=TEXTS, references=GOLDS, use_aggregator=False)
    assert len(each["rouge2"]) == 3
    np.random.seed(1)
    several = load("rouge").compute(predictions=TEXTS, references=GOLDS)
    assert several["rouge1"] == pytest.approx(np.mean(each["rouge1"]), abs=0.1)
    words = load("rouge").compute(
        predictions=["你 好 吗"], references=["你 好"], rouge_types=["rouge1"], tokenizer=str.split
    )
    assert words["rouge1"] == pytest.approx(0.8)


def test_rouge_draws_as_rouge_scores_own_aggregator_does() -> None:
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.scoring import BootstrapAggregator

    golds = [own[0] for own in GOLDS]
    np.random.seed(3)
    aggregator, scorer = BootstrapAggregator(), RougeScorer(["rouge1"])
    for gold, text in zip(golds, TEXTS, strict=True):
        aggregator.add_scores(scorer.score(gold, text))
    theirs = aggregator.aggregate()["rouge1"].mid.fmeasure
    np.random.seed(3)
    ours = load("rouge").compute(predictions=TEXTS, references=golds, rouge_types=["rouge1"])["rouge1"]
    assert ours == pytest.approx(theirs, abs=1e-12)


def test_bleu_is_that_of_the_nmt_script() -> None:
    golds = [["hello there general kenobi", "hello there !"], ["foo bar foobar"]]
    found = load("bleu").compute(
        predictions=["hello there general kenobi", "foo bar foobar"], references=golds
    )
    assert found["bleu"] == pytest.approx(1.0)  # the example of the library's documentation
    assert (found["translation_length"], found["reference_length"], found["length_ratio"]) == (7, 6, 7 / 6)
    none = load("bleu").compute(predictions=["a"], references=["b"])
    assert none["bleu"] == 0.0
    assert none["precisions"] == [0.0, 0.0, 0.0, 0.0]


def test_text_metrics_are_sacrebleus() -> None:
    import sacrebleu

    golds = [own[:1] for own in GOLDS]
    columns = [[own[0] for own in GOLDS]]
    assert load("sacrebleu").compute(predictions=TEXTS, references=golds)["score"] == pytest.approx(
        sacrebleu.corpus_bleu(TEXTS, columns).score
    )
    assert load("chrf").compute(predictions=TEXTS, references=golds, word_order=2)["score"] == pytest.approx(
        sacrebleu.corpus_chrf(TEXTS, columns, word_order=2).score
    )
    ter = load("ter").compute(predictions=TEXTS, references=golds, case_sensitive=True)
    theirs = sacrebleu.corpus_ter(TEXTS, columns, case_sensitive=True)
    assert ter["score"] == pytest.approx(theirs.score)
    assert ter["num_edits"] == 5


def test_added_pairs_are_computed_once() -> None:
    module = load("accuracy")
    module.add(prediction=1, reference=1)
    module.add_batch(predictions=[0], references=[1])
    assert module.compute() == {"accuracy": 0.5}
    assert module.compute(predictions=[1], references=[1]) == {"accuracy": 1.0}
    both = combine(["accuracy", load("wer")]).compute(predictions=["a"], references=["a"])
    assert both == {"accuracy": 1.0, "wer": 0.0}


def test_what_takes_a_model_is_refused_when_it_is_computed(tmp_path: Path) -> None:
    (tmp_path / "utils.py").write_text(
        "import evaluate\nsimilar = evaluate.load('bertscore')\n"
        "def alike(references, predictions): return similar.compute(references=references, predictions=[])\n"
        "def late(x):\n    import evaluate\n    return evaluate.load('exact-match')\n"
    )
    with pytest.raises(ConfigError, match=r"'bertscore'.* needs the library itself"):
        load_function("utils.py:alike", tmp_path)(["x"], ["y"])
