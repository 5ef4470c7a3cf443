"""Sample logs of the harness: found, read, and scored again without dataset and model."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.config.schema import EvalConfig
from metrics.errors import ConfigError
from tasks.benchmarks.lm_eval import Definition, known_definitions, rescoring_configs
from tasks.benchmarks.lm_eval.rescoring import find_logs, likelihoods_of, requests_of, target_of
from tasks.benchmarks.open import open_benchmark
from tasks.datasets.config import DatasetError

TIME = "2026-01-02T03-04-05.678901"
GENERATION = {
    "task": "sums",
    "output_type": "generate_until",
    "doc_to_target": "a",
    "doc_to_text": "{{q}}",
    "repeats": 2,
    "generation_kwargs": {"until": ["\n"]},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    "filter_list": [{"name": "one", "filter": [{"function": "take_first"}]}, {"name": "all", "filter": []}],
}
CHOICES = {
    "task": "pick",
    "output_type": "multiple_choice",
    "doc_to_choice": "options",
    "doc_to_target": "gold",
}


def generated(doc_id: int, filter_name: str, *texts: str) -> dict[str, Any]:
    return {
        "doc_id": doc_id,
        "doc": {"q": f"q{doc_id}", "a": "4"},
        "target": "4",
        "arguments": {"gen_args_0": {"arg_0": f"prompt {doc_id}", "arg_1": {"until": ["\n"]}}},
        "resps": [list(texts)],
        "filtered_resps": [texts[0]],
        "filter": filter_name,
    }


def measured(doc_id: int, *lls: float, gold: Any = 1, **doc: Any) -> dict[str, Any]:
    asked = [("ctx", " x"), ("ctx", " yy"), ("", " x"), ("", " yy")][: len(lls)]
    return {
        "doc_id": doc_id,
        "doc": {"options": ["x", "yy"], "gold": gold, **doc},
        "target": str(gold),
        "arguments": {f"gen_args_{n}": {"arg_0": a, "arg_1": b} for n, (a, b) in enumerate(asked)},
        "resps": [[[str(ll), str(n == 0)]] for n, ll in enumerate(lls)],
        "filter": "none",
    }


@pytest.fixture
def logs(tmp_path: Path):
    folder = tmp_path / "logs" / "some__model"
    folder.mkdir(parents=True)

    def write(task: str, rows: list[dict[str, Any]], config: dict[str, Any] | None, time: str = TIME) -> Path:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"samples_{task}_{time}.jsonl").write_text(text)
        if config is not None:
            results = {"configs": {config["task"]: config}, "model_name": "some/model"}
            (folder / f"results_{time}.json").write_text(json.dumps(results))
        return tmp_path / "logs"

    return write


def opened(config: dict[str, Any]) -> tuple[EvalConfig, list[Any]]:
    native = EvalConfig.model_validate(json.loads(json.dumps(config)))
    benchmark = open_benchmark(native)
    return native, list(benchmark.render("default", benchmark.items()))


def test_the_latest_log_of_each_benchmark_is_found(logs):
    logs("sums", [], None, "2025-01-01T00-00-00.000001")
    folder = logs("sums", [], GENERATION)
    (log,) = find_logs(folder)
    assert (log.task, log.time, log.model_name) == ("sums", TIME, "some/model")
    assert log.config["repeats"] == 2


def test_a_folder_without_logs_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds no sample logs of lm-evaluation-harness"):
        find_logs(tmp_path)


def test_generations_come_back_with_every_repeat_under_the_configs_filters(logs, tmp_path):
    rows = [generated(number, name, "4", "5") for name in ("one", "all") for number in range(3)]
    (config,) = rescoring_configs(logs("sums", rows, GENERATION), tmp_path / "work")
    native, rendered = opened(config)
    assert [entry.name for entry in native.filter_list] == ["one", "all"]
    assert native.sample_params.num_samples == 2
    assert [(one.prompts, one.references) for one in rendered] == [([f"prompt {n}"], ["4"]) for n in range(3)]
    path = Path(config["models"][0]["config"]["path"])
    responses = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(one["sample_index"], one["response"]) for one in responses] == [(0, "4"), (1, "5")] * 3
    assert [one["item_id"] for one in responses[::2]] == [one.item.item_id for one in rendered]


def test_choices_lengths_and_right_answers_come_from_the_document(logs, tmp_path):
    (config,) = rescoring_configs(logs("pick", [measured(0, -2.5, -1.25)], CHOICES), tmp_path / "work")
    _, (rendered,) = opened(config)
    assert (rendered.choices, rendered.gold) == (["x", "yy"], [1])
    assert rendered.continuations == [" x", " yy"]
    line = json.loads(Path(config["models"][0]["config"]["path"]).read_text())
    assert (line["lls"], line["is_greedy"]) == ([-2.5, -1.25], [True, False])


def test_log_likelihoods_without_context_are_the_second_half(logs, tmp_path):
    config = {**CHOICES, "metric_list": [{"metric": "acc_mutual_info"}]}
    (native,) = rescoring_configs(
        logs("pick", [measured(0, -1.0, -2.0, -3.0, -4.0)], config), tmp_path / "work"
    )
    _, (rendered,) = opened(native)
    assert rendered.unconditional == [" x", " yy"]
    line = json.loads(Path(native["models"][0]["config"]["path"]).read_text())
    assert (line["lls"], line["unconditional_lls"]) == ([-1.0, -2.0], [-3.0, -4.0])


def test_functions_of_which_the_log_has_the_source_need_the_definition(logs, tmp_path):
    source = "def process_results(doc, results):\n    return {'right': 1}\n"
    config = {**GENERATION, "process_results": source, "metric_list": [{"metric": "right"}]}
    folder = logs("sums", [generated(0, "one", "4", "5")], config)
    with pytest.raises(
        ConfigError, match=r"'process_results' is a function.*--tasks sums --include-path DIR"
    ):
        rescoring_configs(folder, tmp_path / "work")
    (tmp_path / "utils.py").write_text(source)
    from tasks.benchmarks.lm_eval.yaml import FunctionName

    definition = Definition(
        "sums",
        tmp_path / "sums.yaml",
        {
            **config,
            "process_results": FunctionName(f"{tmp_path}/utils.py:process_results"),
            "dataset_path": "json",
            "test_split": "test",
        },
    )
    (native,) = rescoring_configs(folder, tmp_path / "work", {"sums": definition})
    assert native["process_results"] == "utils.py:process_results"


def test_without_results_file_the_definition_is_asked_for(logs, tmp_path):
    with pytest.raises(ConfigError, match=rf"no results_{TIME}\.json beside it"):
        rescoring_configs(logs("sums", [generated(0, "one", "4")], None), tmp_path / "work")


@pytest.mark.parametrize(
    ("line", "message"),
    [("{broken", r"samples_sums_.*:1: malformed JSON"), ('{"doc_id": 0, "doc": {}}', "has no 'arguments'")],
)
def test_a_line_that_is_no_sample_is_named(logs, tmp_path, line, message):
    folder = logs("sums", [], GENERATION)
    next(folder.rglob("samples_*")).write_text(line + "\n")
    with pytest.raises(DatasetError, match=message):
        rescoring_configs(folder, tmp_path / "work")


def test_documents_with_different_numbers_of_responses_are_refused(logs, tmp_path):
    rows = [generated(0, "one", "4"), generated(1, "one", "4", "5")]
    with pytest.raises(DatasetError, match=r"different numbers of responses: \[1, 2\]"):
        rescoring_configs(logs("sums", rows, GENERATION), tmp_path / "work")


def test_numbers_that_json_lacks_are_read(logs):
    folder = logs("pick", [], CHOICES)
    text = json.dumps(measured(0, -1.0, -2.0, score=float("nan")))
    next(folder.rglob("samples_*")).write_text(text + "\n")
    (row,) = find_logs(folder)[0].rows()
    assert likelihoods_of(row) == ([-1.0, -2.0], [True, False])


def test_rows_hold_requests_in_their_order_and_targets_as_text():
    row = {"arguments": {f"gen_args_{n}": {"arg_0": n, "arg_1": "x"} for n in (0, 1, 10, 2)}}
    assert [request[0] for request in requests_of(row)] == [0, 1, 2, 10]
    assert [target_of({"target": text}) for text in ("3", "[1, 2]", "['a']", "yes", "[oops")] == [
        3,
        [1, 2],
        ["a"],
        "yes",
        "[oops",
    ]


def test_definitions_of_logged_benchmarks_are_looked_up_in_the_folders(logs, tmp_path):
    folder = logs("sums", [generated(0, "one", "4", "5")], GENERATION)
    (tmp_path / "lib").mkdir()
    body = "dataset_path: json\ntest_split: test\ndoc_to_text: q\ndoc_to_target: a\n"
    for name in ("sums", "other"):
        (tmp_path / "lib" / f"{name}.yaml").write_text(f"task: {name}\n{body}")
    found = known_definitions(folder, [tmp_path / "lib"])
    assert {name: one.path.name for name, one in found.items()} == {"sums": "sums.yaml"}
    (config,) = rescoring_configs(folder, tmp_path / "work", found)
    assert config["filter_list"] == [{"name": "none", "filter": [{"function": "take_first"}]}]


def test_chat_prompts_are_logged_in_a_list(logs, tmp_path):
    row = generated(0, "one", "4", "5")
    row["arguments"]["gen_args_0"]["arg_0"] = ['[{"role": "user", "content": "hi"}]']
    (config,) = rescoring_configs(logs("sums", [row], GENERATION), tmp_path / "work")
    _, (rendered,) = opened(config)
    assert rendered.prompts == ['[{"role": "user", "content": "hi"}]']


TARGETS_FROM_A_FUNCTION = "def target(doc):\n    return str([doc['a']])\n"


def rescored(logs: Any, tmp_path: Path, rows: list[dict[str, Any]], config: dict[str, Any]) -> list[Any]:
    (native,) = rescoring_configs(logs(config["task"], rows, config), tmp_path / "work")
    return opened(native)[1]


def answered(*targets: Any) -> list[dict[str, Any]]:
    return [{**generated(number, "one", "4"), "target": target} for number, target in enumerate(targets)]


def test_a_logged_target_that_reads_like_a_number_is_the_text_that_the_harness_compared(logs, tmp_path):
    config = {**GENERATION, "doc_to_target": TARGETS_FROM_A_FUNCTION}
    rendered = rescored(logs, tmp_path, answered("00", "-0", "7"), config)
    assert [one.references for one in rendered] == [["00"], ["-0"], ["7"]]


def test_a_logged_target_that_may_be_a_text_or_a_list_needs_the_definition(logs, tmp_path):
    config = {**GENERATION, "doc_to_target": TARGETS_FROM_A_FUNCTION}
    with pytest.raises(
        DatasetError, match=r"document 0: the target '\[1, 2\]' may be a text or a list.*--tas"
    ):
        rescored(logs, tmp_path, answered("[1, 2]", "[2, 3]"), config)


def test_targets_are_texts_where_the_first_documents_is_or_where_no_list_is_written_so(logs, tmp_path):
    config = {**GENERATION, "doc_to_target": TARGETS_FROM_A_FUNCTION}
    rendered = rescored(logs, tmp_path, answered("none", "[1, 2]"), config)
    assert [one.references for one in rendered] == [["none"], ["[1, 2]"]]
    assert rescored(logs, tmp_path, answered("[1,2]"), config)[0].references == ["[1,2]"]


def test_lists_of_answers_that_are_logged_as_lists_are_lists(logs, tmp_path):
    config = {**GENERATION, "doc_to_target": TARGETS_FROM_A_FUNCTION}
    assert rescored(logs, tmp_path, answered([1, 2]), config)[0].references == ["1", "2"]


def with_targets(first: int, *targets: Any) -> list[dict[str, Any]]:
    rows = [generated(number, "one", "4") for number in range(first, first + len(targets))]
    return [{**row, "doc": {**row["doc"], "a": target}} for row, target in zip(rows, targets, strict=True)]


def test_targets_of_a_definition_are_lists_of_answers_where_the_first_documents_is(logs, tmp_path):
    rendered = rescored(logs, tmp_path, with_targets(0, "no", ["", "yes"]), GENERATION)
    assert [one.references for one in rendered] == [["no"], ["['', 'yes']"]]
    rendered = rescored(logs, tmp_path, with_targets(0, ["no"], "", ["", "yes"]), GENERATION)
    assert [one.references for one in rendered] == [["no"], [""], ["", "yes"]]


def test_lists_beside_texts_are_refused_where_the_log_lacks_the_first_document(logs, tmp_path):
    with pytest.raises(
        DatasetError, match=r"document 4: .*the dataset's first document, which the log lacks"
    ):
        rescored(logs, tmp_path, with_targets(3, "no", ["", "yes"]), GENERATION)
    rendered = rescored(logs, tmp_path, with_targets(3, ["no"], ["", "yes"]), GENERATION)
    assert [one.references for one in rendered] == [["no"], ["", "yes"]]


def chosen(target: str, *choices: str) -> dict[str, Any]:
    row = measured(0, *(-1.0 for _ in choices))
    asked = {f"gen_args_{n}": {"arg_0": "ctx", "arg_1": f" {text}"} for n, text in enumerate(choices)}
    return {**row, "resps": [[["-1.0", "False"]] for _ in choices], "arguments": asked, "target": target}


@pytest.mark.parametrize(
    ("target", "choices", "gold"),
    [("5", ("3", "5"), [1]), ("1", ("x", "yy"), [1]), ("1", ("0", "1"), [1]), ("[0, 1]", ("x", "y"), [0, 1])],
)
def test_a_logged_target_is_a_choices_text_where_it_is_one(logs, tmp_path, target, choices, gold):
    config = {"task": "pick", "output_type": "multiple_choice", "doc_to_target": TARGETS_FROM_A_FUNCTION}
    assert rescored(logs, tmp_path, [chosen(target, *choices)], config)[0].gold == gold


def test_a_logged_target_that_may_be_a_choices_text_or_its_index_needs_the_definition(logs, tmp_path):
    config = {"task": "pick", "output_type": "multiple_choice", "doc_to_target": TARGETS_FROM_A_FUNCTION}
    with pytest.raises(
        DatasetError, match=r"the target '0' may be a choice's text or an index.*--tasks pick"
    ):
        rescored(logs, tmp_path, [chosen("0", "1", "0")], config)


def test_prompts_as_choices_of_which_a_function_says_the_right_one_need_the_definition(logs, tmp_path):
    row = chosen("the end", "the end", "the end")
    row["arguments"]["gen_args_1"]["arg_0"] = "another ctx"
    config = {"task": "pick", "output_type": "multiple_choice", "doc_to_text": TARGETS_FROM_A_FUNCTION}
    with pytest.raises(DatasetError, match=r"its choices are prompts, of which 'doc_to_text' says the right"):
        rescored(logs, tmp_path, [row], config)


def test_choices_of_a_generation_from_a_function_need_the_definition(logs, tmp_path):
    config = {**GENERATION, "doc_to_choice": TARGETS_FROM_A_FUNCTION}
    with pytest.raises(ConfigError, match=r"'doc_to_choice' is a function.*--tasks sums --include-path DIR"):
        rescored(logs, tmp_path, answered("1"), config)
