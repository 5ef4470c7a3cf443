"""Examples of the documents behind this project run as they are printed: YAML, classes, signatures, records.

They are read from the documents where these lie beside the checkout; examples of the same form stand here.
"""

import json
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from metrics import LLResults

Evaluate = Callable[..., Any]
DOCUMENTS = Path(__file__).resolve().parents[3] / "shared" / "data" / "seeds"
SCORERS, GSM8K, METRICS, TWO_PHASE, DICTIONARIES = "001", "002", "003", "004", "000"


def document(number: str) -> str:
    """The text of a document; skips where it is not there."""
    found = sorted(DOCUMENTS.glob(f"{number}-*.txt"))
    if not found:
        pytest.skip(f"{DOCUMENTS} is not there; examples of the same form are tested")
    return found[0].read_text(encoding="utf-8")


def between(text: str, start: str, end: str) -> str:
    """What stands between two marks, the first of them included."""
    begin = text.index(start)
    return text[begin : text.index(end, begin + len(start))]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def written(path: Path, rows: list[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def texts(folder: Path, printed: Mapping[str, Any], **more: Any) -> Path:
    """A config of two items, the first of which is answered rightly, with the keys that are printed."""
    written(
        folder / "items.jsonl",
        [{"id": "a", "answer": "42", "said": "Answer: 42"}, {"id": "b", "answer": "7", "said": "Answer: 8"}],
    )
    base = {
        "name": "printed", "dataset": "items.jsonl", "prompt_template": "?", "target": "{{answer}}",
        "models": [{"name": "A", "type": "replay", "config": {"field": "said"}}],
    }  # fmt: skip
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**base, **printed, **more}), encoding="utf-8")
    return path


FILTERS_HERE = """
filter_list:
  - name: "strict"
    filter: [{function: regex, pattern: "Answer: (.*)"}]
    metric_list: [{metric: exact_match}, {metric: f1_score}, {metric: rouge_1}]
  - name: "lenient"
    filter: [{function: take_first}]
    metric_list: [{metric: bleu}, {metric: rouge}, {metric: rouge_l}]
"""


@pytest.mark.parametrize("printed", [False, True], ids=["here", "document"])
def test_the_yaml_of_the_scorers_document_runs(evaluate: Evaluate, tmp_path: Path, printed: bool) -> None:
    text = FILTERS_HERE
    if printed:
        text = between(document(SCORERS), 'filter_list:\n  - name: "strict"', "\n\n\nExecution Flow")
    ran = evaluate(texts(tmp_path, yaml.safe_load(text)), "--json")
    assert ran.code == 0, ran.err
    assert (ran.value("exact_match,strict"), ran.value("f1_score,strict")) == (0.5, 0.5)
    assert ran.value("bleu,lenient") == 0.0
    assert 0 < ran.value("rouge,lenient") < 100


REWARD_HERE = """
class RewardModelScorer(GenerationScorer):
    def __init__(self, task_config, reward_model_path):
        super().__init__(task_config)
        self.reward_model = load_reward_model(reward_model_path)

    def _compute_metrics(self, gen_result, metrics):
        scores = super()._compute_metrics(gen_result, metrics)
        scores["reward"] = [self.reward_model.score(gen) for gen in gen_result.results]
        return scores


"""
AGREEMENT_HERE = """
class AgreementScorer(Scorer):
    def score_instances(self, instances, filter_name):
        names = instances[0].filtered_resps.keys()
        all_results = {name: [inst.filtered_resps[name] for inst in instances] for name in names}
        return {"filter_agreement": self._compute_agreement(all_results)}


"""
ENSEMBLE_HERE = """
class EnsembleScorer(Scorer):
    def __init__(self, scorers, weights):
        self.scorers = scorers
        self.weights = weights

    def score_instances(self, instances, filter_name):
        results = [scorer.score_instances(instances, filter_name) for scorer in self.scorers]
        return self._weighted_combination(results)


"""
AROUND = """
from scorers import GenerationScorer, GenResult, Scorer


def load_reward_model(path):
    class Length:
        def score(self, text):
            return len(text)
    return Length()


"""
NOT_PRINTED = """

class Agreement(AgreementScorer):
    across_filters = True

    def get_metrics(self, filter_name):
        return ["agreement"] if filter_name == "*" else []

    def score_instances(self, instances, filter_name):
        return {"agreement": super().score_instances(instances, filter_name)["filter_agreement"]}

    def _compute_agreement(self, all_results):
        first, second = all_results.values()
        return float(first == second)


class Ensemble(EnsembleScorer):
    def __init__(self):
        super().__init__([Half(1.0), Half(0.5)], [0.75, 0.25])

    def _weighted_combination(self, results):
        total = sum(w * r.scores["half"][0] for w, r in zip(self.weights, results, strict=True))
        return {"ensembled": total}


class Half:
    def __init__(self, number):
        self.number = number

    def score_instances(self, instances, filter_name):
        result = GenResult.from_instances(instances, filter_name)
        result.scores = {"half": [self.number for _ in result.results]}
        return result
"""


@pytest.fixture(params=["here", "document"])
def classes(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The file with the scorers document's classes, and what it leaves open."""
    printed = REWARD_HERE + AGREEMENT_HERE + ENSEMBLE_HERE
    if request.param == "document":
        text = document(SCORERS)
        marks = [("class RewardModelScorer", "Example 2"), ("class EnsembleScorer", "Example 3"),
                 ("class AgreementScorer", "7. MIGRATION")]  # fmt: skip
        found = (between(text, *mark).rstrip() for mark in marks)
        printed = "\n\n\n".join(found).replace("list[Scorer]", "list")
    (tmp_path / "own.py").write_text(AROUND + printed + NOT_PRINTED, encoding="utf-8")
    return "own.py"


FILTERS = {
    "filter_list": [
        {"name": "strict", "filter": [{"function": "regex", "pattern": "Answer: (.*)"}]},
        {"name": "whole", "filter": [{"function": "take_first"}]},
    ]
}


def test_the_classes_of_the_scorers_document_run(evaluate: Evaluate, tmp_path: Path, classes: str) -> None:
    reward = {"type": f"{classes}:RewardModelScorer", "reward_model_path": "path"}
    config = texts(tmp_path, FILTERS, scorer=reward, metric_list=["exact_match", "f1_score", "reward"])
    ran = evaluate(config, "--json")
    assert ran.code == 0, ran.err
    assert (ran.value("exact_match,strict"), ran.value("f1_score,strict")) == (0.5, 0.5)
    assert (ran.value("reward,strict"), ran.value("reward,whole")) == (1.5, 9.5)
    combined = texts(tmp_path, FILTERS, scorer={"type": f"{classes}:Ensemble"}, metric_list=["ensembled"])
    ran = evaluate(combined, "--json", "--output", tmp_path / "second")
    assert ran.code == 0, ran.err
    assert ran.value("ensembled,whole") == 0.875
    across = texts(tmp_path, FILTERS, scorer={"type": f"{classes}:Agreement"})
    ran = evaluate(across, "--json", "--output", tmp_path / "third")
    assert ran.code == 0, ran.err
    assert ran.value("agreement,*") == 0.0


def test_a_class_that_looks_at_all_filters_is_told_how(evaluate: Evaluate, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(AROUND + AGREEMENT_HERE, encoding="utf-8")
    scorer = {"type": "own.py:AgreementScorer"}
    config = texts(tmp_path, FILTERS, scorer=scorer, metric_list=["agreed"])
    ran = evaluate(config)
    assert ran.code == 2
    assert "give the class across_filters = True and get_metrics(filter_name)" in ran.err


PRELUDE = """
import math
from collections.abc import Sequence
import numpy as np
from metrics import CorpusMetric, LLResults

_NAT_TO_BIT = 1 / math.log(2)


def metric(*names, **about):
    return lambda function: function


def _check_acc(gold, pred, multiple_targets):
    return int(pred in gold if isinstance(gold, list) else gold == pred)


def _softmax(values):
    powers = np.exp(values - np.max(values))
    return powers / powers.sum()


def _weighted_mean(items):
    a, b = zip(*items, strict=True)
    return sum(a) / sum(b)


"""
SIGNATURES_HERE = """
@metric("acc_bytes", output_type="multiple_choice", aggregation="mean")
def acc_bytes(references, predictions):
    pred = np.argmax(predictions.lls / predictions.byte_len()).item()
    return _check_acc(references, pred, False)


@metric("logprob", output_type=["loglikelihood", "multiple_choice"], aggregation="mean")
def logprob_fn(references: int, predictions: LLResults) -> float:
    return (predictions.lls[references]).item()


@metric("brier_score", output_type="multiple_choice", aggregation="mean")
def brier_score(references, predictions):
    probs = _softmax(np.array(predictions.lls))
    one_hot = np.zeros_like(probs)
    one_hot[references] = 1.0
    return (np.sum((probs - one_hot) ** 2)).item()


class Perplexity(CorpusMetric):
    def __call__(self, references, predictions):
        return float(predictions.lls[references])

    def aggregation(self, items):
        return math.exp(-sum(items) / len(items))


class BytePerplexity(CorpusMetric):
    def __call__(self, references, predictions):
        return float(predictions.lls[references]), int(predictions.byte_len()[references])

    def aggregation(self, items):
        return math.exp(-_weighted_mean(items))
"""
OURS = {
    "acc": "acc", "acc_norm": "acc_norm", "acc_bytes": "acc_bytes", "acc_mutual_info_fn": "acc_mutual_info",
    "exact_match_mc": "exact_match_mc", "logprob_fn": "logprob", "brier_score": "brier_score",
}  # fmt: skip
"""The document's function → the metric here that gives the same number."""
ALONE = {
    "bpb": lambda lls, sizes: sum(-ll / size for ll, size in zip(lls, sizes, strict=True)) / 3 / LN2,
    "Perplexity": lambda lls, sizes: 2.718281828459045 ** (-sum(lls) / 3),
    "BytePerplexity": lambda lls, sizes: 2.718281828459045 ** (-sum(lls) / sum(sizes)),
    "BitsPerByte": lambda lls, sizes: -sum(lls) / sum(sizes) / LN2,
}
LN2 = 0.6931471805599453


def printed_metrics(text: str) -> str:
    """The functions on log-likelihoods as they are printed, and classes of the corpus metrics' methods."""
    functions = re.findall(r'@metric\(\n    "[^"]+",.*?\n\n(?=\S)', text, re.DOTALL)
    found = [one for one in functions if "predictions: LLResults" in one]
    assert len(found) == 8
    for name in ("Perplexity", "WordPerplexity", "BytePerplexity", "BitsPerByte"):
        own = text[text.index(f"\n{name}\n\nBases: CorpusMetric") :]
        methods = [re.search(rf"\ndef {method}\(.*?\n\n(?=\S)", own, re.DOTALL) for method in
                   ("__call__", "aggregation")]  # fmt: skip
        bodies = "".join(textwrap.indent(one[0], "    ") for one in methods if one is not None)
        found.append(f"class {name}(CorpusMetric):{bodies}")
    return "\n\n".join(found)


@pytest.mark.parametrize("printed", [False, True], ids=["here", "document"])
def test_the_signatures_of_the_metrics_document_run(
    evaluate: Evaluate, tmp_path: Path, printed: bool
) -> None:
    text = printed_metrics(document(METRICS)) if printed else SIGNATURES_HERE
    (tmp_path / "own.py").write_text(PRELUDE + text, encoding="utf-8")
    gold = [0, 1, 1]
    items = [{"id": str(at), "choices": ["yes", "nö way"], "answer": right} for at, right in enumerate(gold)]
    lls = [[-1.0, -2.0], [-3.0, -4.5], [-2.0, -1.0]]
    written(tmp_path / "items.jsonl", items)
    written(
        tmp_path / "r.jsonl",
        [
            {"item_id": str(at), "lls": own, "is_greedy": [own[0] > own[1], own[0] < own[1]],
             "unconditional_lls": [-1.0, -1.5], "unconditional_greedy": [False, False]}
            for at, own in enumerate(lls)
        ],
    )  # fmt: skip
    names = re.findall(r"^(?:def|class) ([A-Za-z]\w+)\(", text, re.MULTILINE)
    theirs = [{"metric": f"own.py:{name}", "alias": f"their_{name}"} for name in names]
    ours = dict.fromkeys([*(OURS[name] for name in names if name in OURS), "acc_mutual_info"])
    config = {
        "name": "mc", "output_type": "multiple_choice", "dataset": "items.jsonl", "prompt_template": "?",
        "choices": "{{choices}}", "target": "{{answer}}", "metric_list": [*theirs, *ours],
        "models": [{"name": "A", "type": "replay", "config": {"path": "r.jsonl"}}],
    }  # fmt: skip
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    ran = evaluate(path, "--json")
    assert ran.code == 0, ran.err
    right = [own[answer] for own, answer in zip(lls, gold, strict=True)]
    sizes = [len(items[at]["choices"][answer].encode()) for at, answer in enumerate(gold)]
    for name in names:
        value = ran.value(f"their_{name},none")
        if name in OURS:
            assert value == pytest.approx(ran.value(f"{OURS[name]},none")), name
        elif name in ALONE:
            assert value == pytest.approx(ALONE[name](right, sizes)), name
    assert len(names) >= 5


FROM_INSTANCES_HERE = """
@classmethod
def from_instances(cls, results, filter_name="none"):
    inst = sorted(results, key=lambda x: (x.doc_id, x.metadata.get("acc_mutual_info", False)))
    pairs = [pair for one in inst for pair in one.filtered_resps[filter_name]]
    lls = np.array([ll for ll, _ in pairs])
    asked = sum(not one.metadata.get("acc_mutual_info", False) for one in inst)
    mutual = lls[:asked] - lls[asked:] if asked < len(inst) else _empty_array()
    return cls(
        results=[one.filtered_resps[filter_name] for one in inst],
        lls=lls[:asked],
        is_greedy=tuple(greedy for _, greedy in pairs)[:asked],
        ctx=inst[0].args[0],
        targets=inst[0].target,
        choices=tuple(one.args[1] for one in inst)[:asked],
        lls_mutual_info=mutual,
    )
"""


def asked_choice(choice: str, ll: float, alone: bool) -> Any:
    """One request of the harness: a choice after its context, or without it."""
    return SimpleNamespace(
        doc_id=3, target=1, args=("Q:", choice), filtered_resps={"none": [(ll, ll > -1.5)]},
        metadata={"acc_mutual_info": True} if alone else {},
    )  # fmt: skip


@pytest.mark.parametrize("printed", [False, True], ids=["here", "document"])
@pytest.mark.parametrize("mutual", [False, True])
def test_the_printed_way_of_bundling_likelihoods_makes_the_results_that_ours_makes(
    printed: bool, mutual: bool
) -> None:
    text = FROM_INSTANCES_HERE
    if printed:
        own = document(METRICS).partition("\nfrom_instances classmethod\n")[2]
        text = between(own, "@classmethod\ndef from_instances", "\nto_metric_inputs\n")
    around = {"np": np, "_empty_array": lambda: np.empty(0), "Sequence": Sequence}
    around |= dict.fromkeys(("LLInstance", "Self"), Any)
    made: dict[str, Any] = {}
    exec(text, around, made)  # the document's own text
    theirs = type("Theirs", (LLResults,), made)
    instances = [asked_choice("yes", -1.0, False), asked_choice("nö way", -2.0, False)]
    if mutual:
        instances += [asked_choice("yes", -3.0, True), asked_choice("nö way", -2.5, True)]
    for bundle in (theirs.from_instances(instances), LLResults.from_instances(instances)):
        assert (bundle.lls.tolist(), list(bundle.is_greedy)) == ([-1.0, -2.0], [True, False])
        assert (list(bundle.choices), bundle.targets, bundle.ctx) == (["yes", "nö way"], 1, "Q:")
        assert bundle.lls_mutual_info.tolist() == ([2.0, 0.5] if mutual else [])
        lengths = [bundle.char_len(), bundle.byte_len(), bundle.word_len()]
        assert [one.tolist() for one in lengths] == [[3, 6], [3, 7], [1, 2]]
        assert bundle.to_metric_inputs() == {"references": 1, "predictions": bundle}


DICTIONARIES_HERE = """
def simple_metric(references, predictions):
    return 0.95


def my_metric(references, predictions):
    return 0.75


def weird_metric(references, predictions):
    return {"score_1": 0.8, "score_2": 0.6}


def exact_match_hf_evaluate(predictions, references):
    return {"exact_match": 0.95}


"""
IN_DICTIONARIES = ("simple_metric", "my_metric", "weird_metric", "exact_match_hf_evaluate")


@pytest.mark.parametrize("printed", [False, True], ids=["here", "document"])
@pytest.mark.filterwarnings("ignore:metric 'weird_metric' returned a dictionary")
def test_numbers_and_dictionaries_are_both_scores(evaluate: Evaluate, tmp_path: Path, printed: bool) -> None:
    text = DICTIONARIES_HERE
    if printed:
        whole = document(DICTIONARIES)
        pattern = r"^def {}\(.*?\n(?=\n|```)"
        found = [re.search(pattern.format(name), whole, re.DOTALL | re.MULTILINE) for name in IN_DICTIONARIES]
        text = "\n\n".join(one[0] for one in found if one is not None)
    (tmp_path / "own.py").write_text(text, encoding="utf-8")
    own = [f"own.py:{name}" for name in IN_DICTIONARIES]
    config = texts(tmp_path, {}, metric_list=own)
    ran = evaluate(config, "--json")
    assert ran.code == 0, ran.err
    values = [ran.value(f"{name},none") for name in IN_DICTIONARIES]
    assert values == [0.95, 0.75, 0.8, 0.95]


EXACT_MATCH_HERE = """
@metric("exact_match", output_type="generate_until", aggregation="mean")
def exact_match_fn(references, predictions, multiple_targets=False, **kwargs):
    if multiple_targets:
        targets = references[0] if isinstance(references[0], list) else references
        pairs = [(p, t) for p in predictions for t in targets]
        result = _exact_match_hf_evaluate(predictions=[p for p, _ in pairs], references=[t for _, t in pairs])
        found = np.array(result["exact_match"]).reshape(len(predictions), len(targets)).any(axis=1)
        return {"exact_match": found.astype(int).tolist()}
    single = cast("list[str]", references)
    return _exact_match_hf_evaluate(predictions=predictions, references=single, **kwargs)


"""
NOT_IN_THE_DOCUMENT = """
from typing import cast


def _exact_match_hf_evaluate(predictions, references, **kwargs):
    return {"exact_match": [int(p == r) for p, r in zip(predictions, references, strict=True)]}


"""


@pytest.mark.parametrize("printed", [False, True], ids=["here", "document"])
@pytest.mark.parametrize(
    ("target", "keys", "value"),
    [("{{answer}}", {}, 0.5), ("{{[answer, '8']}}", {"multiple_targets": True}, 1.0)],
    ids=["one target", "several"],
)
def test_a_metric_that_gives_a_list_in_a_dictionary_runs(
    evaluate: Evaluate, tmp_path: Path, printed: bool, target: str, keys: Mapping[str, Any], value: float
) -> None:
    text = EXACT_MATCH_HERE
    if printed:
        text = between(document(METRICS), '@metric(\n    "exact_match",', "\nAggregation Functions")
    (tmp_path / "own.py").write_text(PRELUDE + NOT_IN_THE_DOCUMENT + text, encoding="utf-8")
    metrics = [{"metric": "own.py:exact_match_fn", **keys}]
    steps = [{"function": "regex", "regex_pattern": "Answer: (.*)"}, {"function": "take_first"}]
    filters = [{"name": "strict", "filter": steps, "metric_list": metrics}]
    ran = evaluate(texts(tmp_path, {"filter_list": filters}, target=target), "--json")
    assert ran.code == 0, ran.err
    assert ran.value("exact_match_fn,strict") == value


GSM8K_HERE = """
metric_list:
  - metric: exact_match,strict-match
  - metric: exact_match,flexible-extract
  - metric: bleu
  - metric: rouge1
"""


@pytest.mark.parametrize("printed", [False, True], ids=["here", "document"])
def test_a_bare_metric_for_a_number_names_the_cure_and_stays_on_its_scale(
    evaluate: Evaluate, tmp_path: Path, printed: bool
) -> None:
    """On the page of differences: bleu takes texts, and a function that computed it gives a number."""
    text = GSM8K_HERE
    if printed:
        own = between(document(GSM8K), "# Custom function handles filtering selectively", "```")
        text = re.sub(r"^process_results:.*$", "", own, flags=re.MULTILINE)
    (tmp_path / "utils.py").write_text(
        "def process_results(doc, results):\n"
        "    bleu = 12.34 if doc['id'] == 'a' else 90.0\n"
        "    return {'exact_match,strict-match': 1.0, 'exact_match,flexible-extract': 0.0, 'bleu': bleu,\n"
        "            'rouge1': 45.67}\n",
        encoding="utf-8",
    )
    config = texts(tmp_path, yaml.safe_load(text), process_results="utils.py:process_results")
    refused = evaluate(config)
    assert refused.code == 2
    assert "write {metric: bleu, aggregation: mean}" in refused.err
    ran = evaluate(config, "--set", "metric_list.2.aggregation=mean", "--json")
    assert ran.code == 0, ran.err
    assert ran.value("bleu,none") == pytest.approx(51.17)
    rows = [row for row in ran.document["results"] if row["metric"] in ("bleu", "rouge1")]
    assert all(0 <= row["ci_low"] < row["value"] < row["ci_high"] <= 100 for row in rows)


EXAMPLE_HERE = {
    "dataset": '{"id": "problem_1", "data": {"question": "What is 2+2?", "answer": "4"}}\n'
    '{"id": "problem_2", "data": {"question": "What is 3+3?", "answer": "6"}}\n',
    "prompt": 'prompt_template: "Solve the following problem: {{question}}"',
    "method": "def exact_match_eval(response, ground_truth, inference_result=None, **params):\n"
    '    answer = ground_truth["answer"]\n'
    '    result = {"passed": answer in response, "score": float(answer in response)}\n'
    '    return {"label": {"name": "exact_match"}, "result": result}\n',
    "metrics": "metrics:\n  - name: pass@1\n    type: pass_at_k\n"
    "    facets: [metadata.model_id, prompt_template]\n"
    "    params: {k: 1, num_trials: 16, aggregation: mean}\n",
    "record": '{"item_id": "p", "sample_id": "p_sample_10", "sample_index": 10, "total_samples": 16,'
    ' "model_name": "Q", "prompt": "?", "response": "4", "timestamp": 1750440075.5954432, "error": null,'
    ' "metadata": {"model_id": "Q", "prompt_template": "[prompt template]"}, "total_tokens": 5431}',
}  # fmt: skip


def example(printed: bool) -> dict[str, str]:
    """The parts of the two-phase document's complete example."""
    if not printed:
        return EXAMPLE_HERE
    text = document(TWO_PHASE)
    return {
        "dataset": between(text, '{"id": "problem_1", "data"', "```"),
        "prompt": between(text, 'prompt_template: "Solve', "\n"),
        "method": between(text, "# Evaluation method checks", "```"),
        "metrics": between(text, "metrics:\n  # Built-in", "```"),
        "record": between(text, '{\n    "item_id": "2025', "```"),
    }


@pytest.mark.parametrize("printed", [False, True], ids=["here", "document"])
def test_the_two_phase_document_s_example_names_what_it_lacks_and_then_runs(
    evaluate: Evaluate, tmp_path: Path, printed: bool
) -> None:
    parts = example(printed)
    (tmp_path / "items.jsonl").write_text(parts["dataset"], encoding="utf-8")
    (tmp_path / "own.py").write_text(parts["method"], encoding="utf-8")
    said = {"problem_1": ["2+2=4", "4", "It is 4"], "problem_2": ["3+3=6", "6", "7"]}
    metadata = {"model_id": "model_1", "prompt_template": "template_1"}
    rows = [
        {"item_id": item, "sample_id": f"{item}_sample_{at}", "sample_index": at, "total_samples": 3,
         "response": text, "metadata": metadata}
        for item, own in said.items()
        for at, text in enumerate(own)
    ]  # fmt: skip
    written(tmp_path / "responses.jsonl", rows)
    [metric] = yaml.safe_load(parts["metrics"])["metrics"]
    metric["params"]["num_trials"] = 3
    config = {
        "name": "example", "dataset": "items.jsonl", **yaml.safe_load(parts["prompt"]),
        "sample_params": {"num_samples": 3}, "metrics": [metric],
        "models": [{"name": "A", "type": "replay", "config": {"path": "responses.jsonl"}}],
        "evaluation_methods": [{"name": "e", "function": "own.py:exact_match_eval"}],
    }  # fmt: skip
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    lacking = evaluate(path)
    assert lacking.code == 1
    [line] = lines(tmp_path / "out" / "metrics.jsonl")
    assert "the item has no ground_truth to read; set dataset: {path: …, ground_truth: data}" in line["error"]
    assert "its fields are question, answer" in line["error"]
    ran = evaluate(path, "--set", "dataset={path: items.jsonl, ground_truth: data}")
    assert ran.code == 0, ran.err
    [line] = lines(tmp_path / "out" / "metrics.jsonl")
    assert (line["metadata.model_id"], line["prompt_template"], line["label"]) == (
        "model_1", "template_1", "exact_match",
    )  # fmt: skip
    assert line["pass_at_1"] == pytest.approx(5 / 6)
    assert (line["average_sample_count"], line["total_sample_count"]) == (3, 6)
    judged = lines(tmp_path / "out" / "evaluation_results.jsonl")
    assert [row["passed"] for row in judged] == [True] * 5 + [False]


@pytest.mark.parametrize("printed", [False, True], ids=["here", "document"])
def test_the_two_phase_document_s_real_line_is_read_whole(
    evaluate: Evaluate, tmp_path: Path, printed: bool
) -> None:
    record = json.loads(example(printed)["record"])
    written(tmp_path / "items.jsonl", [{"id": record["item_id"], "data": {"question": "?"}}])
    written(tmp_path / "responses.jsonl", [record])
    config = {
        "name": "real", "dataset": "items.jsonl", "prompt_template": "{{question}}",
        "sample_params": {"num_samples": 16}, "metrics": [{"name": "count", "facets": ["metadata.model_id"]}],
        "models": [{"name": record["model_name"], "type": "replay", "config": {"path": "responses.jsonl"}}],
        "evaluation_methods": [{"name": "length_check", "params": {"min_length": 1}}],
    }  # fmt: skip
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    ran = evaluate(path)
    assert ran.code == 0, ran.err
    [line] = lines(tmp_path / "out" / "metrics.jsonl")
    assert (line["count"], line["metadata.model_id"]) == (1, record["metadata"]["model_id"])
    kept = next(row for row in lines(tmp_path / "out" / "responses.jsonl") if row["status"] == "ok")
    assert (kept["sample_index"], kept["timestamp_unix"]) == (10, 1750440075.5954432)
    assert kept["metadata"]["prompt_template"] == "[prompt template]"
    assert (kept["response"], kept["total_tokens"]) == (record["response"], 5431)
