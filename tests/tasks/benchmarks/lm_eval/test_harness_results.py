"""Results, sample logs and hashes in the harness's shape; groups over what their members have."""

import hashlib
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tasks.benchmarks.lm_eval import results as harness_results
from tasks.benchmarks.lm_eval.about import HarnessCommand
from tasks.benchmarks.lm_eval.results import FinishedRun, group_numbers, leaf_names, write_harness_files
from tasks.benchmarks.lm_eval.select import Aggregate, Group

NUMBERS = {
    "one": {"sample_len": 10, "acc,none": 0.5, "acc_stderr,none": 0.1},
    "two": {
        "sample_len": 30,
        "acc,none": 0.9,
        "acc_stderr,none": 0.2,
        "f1,none": 0.3,
        "f1_stderr,none": "N/A",
    },
}


def group(*aggregates: Aggregate, members: tuple[str, ...] = ("one", "two")) -> Group:
    return Group("g", "G", members, aggregates)


def test_a_group_is_weighted_by_size_or_not():
    weighted = group_numbers(group(Aggregate("acc")), {}, NUMBERS)
    assert weighted["acc,none"] == pytest.approx(0.8)
    assert weighted["acc_stderr,none"] == pytest.approx((0.025**2 + 0.15**2) ** 0.5)
    plain = group_numbers(group(Aggregate("acc", ("none",), weight_by_size=False)), {}, NUMBERS)
    assert plain["acc,none"] == pytest.approx(0.7)
    assert plain["acc_stderr,none"] == pytest.approx((0.1**2 + 0.2**2) ** 0.5 / 2)
    assert (plain["sample_len"], plain["sample_count"]) == (40, {"acc,none": 40})


def test_a_metric_that_one_member_has_is_of_that_member():
    found = group_numbers(group(Aggregate("f1")), {}, NUMBERS)
    assert (found["f1,none"], found["f1_stderr,none"]) == (0.3, "N/A")


def test_a_member_whose_pair_failed_leaves_the_group_without_a_number():
    failed = {**NUMBERS, "one": {"sample_len": 0, "acc,none": None, "acc_stderr,none": "N/A"}}
    assert group_numbers(group(Aggregate("acc")), {}, failed)["acc,none"] is None


def test_a_member_that_did_not_run_leaves_the_group_without_a_number():
    found = group_numbers(group(Aggregate("acc"), members=("one", "gone")), {}, NUMBERS)
    assert (found["acc,none"], found["acc_stderr,none"]) == (None, "N/A")


def test_groups_in_groups_count_every_benchmark_once():
    groups = {"h": Group("h", "H", ("one", "two"), ())}
    assert leaf_names(group(members=("h", "one")), groups) == ["one", "two"]


@pytest.fixture
def run(tmp_path: Path) -> FinishedRun:
    folder = tmp_path / "run"
    folder.mkdir()
    results = {
        "results": {
            "sums": {
                "alias": "sums",
                "sample_len": 1,
                "exact_match,none": 1.0,
                "exact_match_stderr,none": "N/A",
            }
        },
        "higher_is_better": {"sums": {"exact_match": True}},
        "n-samples": {"sums": {"original": 5, "effective": 1}},
        "config": {"model": "m"},
        "git_hash": None,
        "date": 1.0,
    }
    row: dict[str, Any] = {
        "doc_id": 0,
        "item_id": "i",
        "doc": {"q": "é?", "a": 4},
        "target": "4",
        "arguments": {"gen_args_0": {"arg_0": "é?", "arg_1": {"max_tokens": 5}}},
        "resps": [["4"]],
        "filtered_resps": ["4"],
        "filter": "none",
        "metrics": ["exact_match"],
        "exact_match": 1.0,
    }
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "samples_sums.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n")
    definition = {
        "task": "sums",
        "task_alias": "Sums",
        "doc_to_target": "Answer: {{a}}",
        "num_fewshot": 2,
        "metadata": {"version": 3},
        "generation_kwargs": {"until": ["\n"]},
    }
    harness = {"task": "sums", "config": definition}
    config = {"name": "sums", "base_dir": str(tmp_path), "models": [{"name": "org/m:1"}], "harness": harness}
    return FinishedRun(config, folder)


def test_files_are_named_shaped_and_hashed_as_the_harness_does(run, tmp_path):
    groups = {"g": Group("g", "G", ("sums",), (Aggregate("exact_match"),), "2")}
    (path,) = write_harness_files([run], groups, tmp_path / "out", datetime(2026, 1, 2, 3, 4, 5, 678901))
    assert path == tmp_path / "out" / "org__m__1" / "results_2026-01-02T03-04-05.678901.json"
    document = json.loads(path.read_text())
    assert document["results"]["sums"]["alias"] == "Sums"
    assert document["results"]["g"]["exact_match,none"] == document["groups"]["g"]["exact_match,none"] == 1.0
    assert document["group_subtasks"] == {"g": ["sums"]}
    assert document["versions"] == {"g": "2", "sums": 3}
    assert document["n-shot"] == {"g": 2, "sums": 2}
    assert document["higher_is_better"] == {"g": {"exact_match": True}, "sums": {"exact_match": True}}
    assert document["n-samples"] == {"sums": {"original": 5, "effective": 1}}
    line = json.loads((path.parent / "samples_sums_2026-01-02T03-04-05.678901.jsonl").read_text())
    assert line["target"] == "Answer: 4"
    assert line["arguments"]["gen_args_0"]["arg_1"] == {"until": ["\n"]}
    doc = '{\n  "q": "é?",\n  "a": 4\n}'
    parts = [hashlib.sha256(text.encode()).hexdigest() for text in (doc, "é?", "Answer: 4")]
    assert [line["doc_hash"], line["prompt_hash"], line["target_hash"]] == parts
    assert document["task_hashes"] == {"sums": hashlib.sha256("".join(parts).encode()).hexdigest()}
    assert "item_id" not in line


def test_a_chat_is_hashed_as_the_harness_writes_it(run, tmp_path):
    (path,) = run.folder.glob("samples_*.jsonl")
    row = json.loads(path.read_text())
    row["arguments"]["gen_args_0"]["arg_0"] = '[{"role":"user","content":"é?"}]'
    path.write_text(json.dumps(row))
    harness = {**run.config["harness"], "apply_chat_template": True}
    chat = FinishedRun({**run.config, "harness": harness}, run.folder)
    (results,) = write_harness_files([chat], {}, tmp_path / "out", datetime(2026, 1, 2))
    (log,) = results.parent.glob("samples_*.jsonl")
    said = '[{"role": "user", "content": "é?"}]'
    assert json.loads(log.read_text())["prompt_hash"] == hashlib.sha256(said.encode()).hexdigest()


def test_a_log_likelihood_stands_there_as_often_as_it_was_to_be_asked(run, tmp_path):
    (path,) = run.folder.glob("samples_*.jsonl")
    row = json.loads(path.read_text())
    row["resps"] = [[["-1.5", "True"]], [["-2.5", "False"]]]
    path.write_text(json.dumps(row))
    definition = {**run.definition, "output_type": "multiple_choice", "repeats": 2}
    harness = {**run.config["harness"], "config": definition}
    (results,) = write_harness_files(
        [FinishedRun({**run.config, "harness": harness}, run.folder)],
        {},
        tmp_path / "out",
        datetime(2026, 1, 2),
    )
    (log,) = results.parent.glob("samples_*.jsonl")
    assert json.loads(log.read_text())["resps"] == [[["-1.5", "True"]] * 2, [["-2.5", "False"]] * 2]


def _logged(run: FinishedRun, tmp_path: Path, definition: dict, row: dict, chat: bool = False) -> dict:
    """The line of the sample log that one row of the run's own file gives."""
    (path,) = run.folder.glob("samples_*.jsonl")
    path.write_text(json.dumps({**json.loads(path.read_text()), **row}))
    harness = {"task": "sums", "config": definition, "apply_chat_template": chat}
    finished = FinishedRun({**run.config, "harness": harness}, run.folder)
    (results,) = write_harness_files([finished], {}, tmp_path / "out", datetime(2026, 1, 2))
    (log,) = results.parent.glob("samples_*.jsonl")
    return json.loads(log.read_text())


LLS = [[["-2.0", "False"]], [["-0.5", "True"]], [["-1.0", "False"]]]


def test_corpus_metrics_of_choices_are_logged_as_what_they_are_made_of(run, tmp_path):
    definition = {
        "output_type": "multiple_choice", "doc_to_text": "q", "doc_to_target": "{{2}}",
        "doc_to_choice": ["a", "b", "c"],
    }  # fmt: skip
    names = ["acc", "f1", "mcc", "brier_score", "likelihood"]
    row = {"doc": {"q": "?"}, "resps": LLS, "metrics": names, **dict.fromkeys(names), "acc": 0.0}
    line = _logged(run, tmp_path, definition, row)
    assert (line["acc"], line["f1"], line["mcc"]) == (0.0, [2, 1], [2, 1])
    assert line["likelihood"] == [2, [-2.0, -0.5, -1.0]]
    gold, shares = line["brier_score"]
    assert (gold, shares) == (2, "[0.12195165 0.54654939 0.33149896]")
    outside = {**definition, "doc_to_target": "{{7}}"}
    assert _logged(run, tmp_path, outside, row)["f1"] == [-100, 1]


def test_corpus_metrics_of_documents_and_texts_are_logged_as_what_they_are_made_of(run, tmp_path):
    rolling = {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "q"}
    names = ["word_perplexity", "byte_perplexity", "bits_per_byte"]
    row = {"doc": {"q": "é b\nc"}, "resps": [["-7.5"]], "metrics": names, **dict.fromkeys(names)}
    line = _logged(run, tmp_path, rolling, row)
    assert [line[name] for name in names] == [[-7.5, 3], [-7.5, 6], [-7.5, 6]]
    texts = {"output_type": "generate_until", "doc_to_text": "q", "doc_to_target": "{{q}}!"}
    row |= {"resps": [["the answer"]], "filtered_resps": ["answer"], "metrics": ["bleu", "exact_match"]}
    line = _logged(run, tmp_path, texts, {**row, "bleu": 12.0, "exact_match": 0.0})
    assert (line["bleu"], line["exact_match"]) == (["é b\nc!", "answer"], 0.0)
    failed = _logged(run, tmp_path, texts, {**row, "resps": [[None]], "bleu": None})
    assert failed["bleu"] is None


def test_a_filter_that_does_not_take_the_first_leaves_a_list(run, tmp_path):
    steps = [{"function": "remove_whitespace"}]
    definition = {
        "output_type": "generate_until", "doc_to_text": "q", "doc_to_target": "q",
        "filter_list": [{"name": "all", "filter": steps}],
    }  # fmt: skip
    row = {"doc": {"q": "x"}, "resps": [["y"]], "filtered_resps": ["y"], "filter": "all", "metrics": ["f1"]}
    line = _logged(run, tmp_path, definition, {**row, "f1": None})
    assert (line["filtered_resps"], line["f1"]) == ([["y"]], ["x", ["y"]])
    steps.append({"function": "take_first"})
    line = _logged(run, tmp_path, definition, {**row, "f1": None})
    assert (line["filtered_resps"], line["f1"]) == (["y"], ["x", "y"])


def test_a_chat_is_logged_as_a_list_of_one_text(run, tmp_path):
    definition = {
        "output_type": "generate_until", "doc_to_text": "q", "doc_to_target": "q",
        "generation_kwargs": {"until": []},
    }  # fmt: skip
    row = {"doc": {"q": "x"}, "arguments": {"gen_args_0": {"arg_0": '[{"role":"user","content":"é?"}]'}}}
    line = _logged(run, tmp_path, definition, row, chat=True)
    assert line["arguments"]["gen_args_0"]["arg_0"] == ['[{"role": "user", "content": "é?"}]']


def test_groups_have_the_shots_of_their_members_and_of_groups_among_them():
    groups = {
        "all": Group("all", "all", ("mixed", "d"), ()),
        "mixed": Group("mixed", "mixed", ("a", "b"), ()),
        "same": Group("same", "same", ("a", "c"), ()),
    }
    assert harness_results._shots_of_groups(groups, {"a": 0, "b": 5, "c": 0, "d": 5}) == {"all": 5, "same": 0}
    better = {"a": {"acc": True, "f1": True}, "b": {"acc": False}, "c": {"acc": True}, "d": {"ppl": False}}
    assert harness_results._better_of_groups(groups, better) == {
        "mixed": {"acc": None, "f1": True},
        "all": {"acc": None, "f1": True, "ppl": False},
        "same": {"acc": True, "f1": True},
    }


LACKED = {
    "chat_template", "chat_template_sha", "eot_token_id", "fewshot_as_multiturn", "lm_eval_version",
    "max_length", "model_name_sanitized", "model_source", "pretty_env_info", "system_instruction",
    "system_instruction_sha", "tokenizer_bos_token", "tokenizer_eos_token", "tokenizer_pad_token",
    "total_evaluation_time_seconds", "transformers_version", "upper_git_hash",
}  # fmt: skip


def test_results_say_of_the_run_what_the_harness_says(run, tmp_path):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    settings = {"eos_token": {"content": "<end>"}, "bos_token": "<begin>", "chat_template": "{{ x }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    added = [{"id": 9, "content": "<end>"}]
    (folder / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": {"<begin>": 1}}, "added_tokens": added})
    )
    (run.folder / "manifest.json").write_text(json.dumps({"wall_seconds": 2.5}))
    model = {
        "name": "org/m:1", "tokenizer": str(folder), "max_length": 64, "config": {"api": "completions"},
    }  # fmt: skip
    harness = {**run.config["harness"], "system_instruction": "Add up."}
    told = FinishedRun({**run.config, "models": [model], "harness": harness}, run.folder)
    (path,) = write_harness_files([told], {}, tmp_path / "out", datetime(2026, 1, 2))
    document = json.loads(path.read_text())
    assert document.keys() >= LACKED
    assert len(LACKED) == 17
    assert (document["tokenizer_eos_token"], document["eot_token_id"]) == (["<end>", "9"], 9)
    assert document["tokenizer_bos_token"] == ["<begin>", "1"]
    assert document["tokenizer_pad_token"] == [None, "None"]
    assert (document["max_length"], document["total_evaluation_time_seconds"]) == (63, "2.5")
    assert (document["model_source"], document["model_name_sanitized"]) == ("local-completions", "org__m__1")
    sha = hashlib.sha256(b"Add up.").hexdigest()
    assert (document["system_instruction"], document["system_instruction_sha"]) == ("Add up.", sha)
    assert document["fewshot_as_multiturn"] is None  # not a chat


def test_a_command_line_names_the_results_file_and_may_want_no_samples(run, tmp_path):
    command = HarnessCommand("local-completions", {"limit": 0.5}, log_samples=False)
    (path,) = write_harness_files([run], {}, tmp_path / "a" / "b.json", datetime(2026, 1, 2), command)
    assert path == tmp_path / "a" / "b_2026-01-02T00-00-00.json"
    document = json.loads(path.read_text())
    assert (document["config"], document["task_hashes"]) == ({"limit": 0.5}, {})
    assert [*path.parent.glob("samples_*")] == []


@pytest.mark.parametrize("logged", [{}, {"samples": "samples_pick.jsonl"}], ids=["run", "scored again"])
def test_the_target_of_a_generated_choice_is_its_index(tmp_path: Path, logged: dict[str, Any]):
    config = {"output_type": "generate_until", "doc_to_target": "gold", "doc_to_choice": ["yes", "no"]}
    config["metric_list"] = [{"metric": "exact_match"}]
    row = {
        "doc_id": 0, "doc": {"gold": 1}, "target": "no", "arguments": {}, "resps": [["no"]],
        "filtered_resps": ["no"], "filter": "none", "metrics": ["exact_match"], "exact_match": 1.0,
    }  # fmt: skip
    (tmp_path / "ours.jsonl").write_text(json.dumps(row) + "\n")
    harness = {"task": "pick", "config": config, **logged}
    harness_results.write_samples(tmp_path / "ours.jsonl", tmp_path / "theirs.jsonl", harness, str(tmp_path))
    line = json.loads((tmp_path / "theirs.jsonl").read_text())
    assert (line["target"], line["target_hash"]) == ("1", hashlib.sha256(b"1").hexdigest())
    assert line["exact_match"] == 1.0
