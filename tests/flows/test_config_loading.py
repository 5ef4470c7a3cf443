"""What a config file may get wrong, and the sentence that answers it."""

import re
from pathlib import Path
from typing import get_args

import pytest
import yaml

from flows.config.errors import NOT_WRITTEN, models_at, takes_function
from flows.config.load import load_config
from flows.config.schema import EvalConfig
from flows.config.source import function_reference, parse_yaml
from metrics.config import BelongsTo, Strict
from metrics.errors import ConfigError
from scorers.metric_lists import DEFAULT_METRICS

VALID = """\
name: sums
dataset: items.jsonl
prompt_template: "{{question}}"
target: "{{answer}}"
models:
  - name: qwen
filter_list:
  - name: strict
    filter:
      - function: take_first
    metric_list:
      - metric: exact_match
"""

TARGET = '"{{answer}}"'

USER = """\
def two(a, b):
    return a

def three(a, b, c):
    return a

def metric(references, predictions, scale=1):
    return 1.0

CONSTANT = 3
"""

KEYS = f"(known: {', '.join(name for name in EvalConfig.model_fields if name not in NOT_WRITTEN)})"
REFUSED = yaml.safe_load((Path(__file__).parent / "bad_configs.yaml").read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "user.py").write_text(USER)
    return tmp_path


def refused(folder: Path, text: str) -> str:
    (folder / "bench.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        load_config(folder / "bench.yaml")
    return str(error.value)


def test_the_config_that_the_cases_spoil_is_valid(folder: Path) -> None:
    (folder / "bench.yaml").write_text(VALID)
    assert load_config(folder / "bench.yaml").name == "sums"


@pytest.mark.parametrize("case", REFUSED)
def test_a_mistake_is_answered_with_file_line_and_expectation(folder: Path, case: str) -> None:
    old, new, message = REFUSED[case]["old"], REFUSED[case]["new"], REFUSED[case]["message"]
    assert old in VALID
    expected = message.replace("{folder}", str(folder))
    assert refused(folder, VALID.replace(old, new, 1)) == expected


def test_known_keys_are_listed_once_and_not_beside_the_one_that_was_meant(folder: Path) -> None:
    said = refused(folder, VALID + "modells: []\nzzzz: 1\nqqqq: 2\nprompt: hi\n")
    lines = {line.split(": ")[1]: line for line in said.splitlines()}
    assert lines["modells"].endswith("'modells' is not a key here; did you mean 'models'?")
    assert "'prompt_template'?" in lines["prompt"]
    assert lines["zzzz"].endswith(KEYS)
    assert lines["qqqq"].endswith("'qqqq' is not a key here")
    assert "config_file" not in said


@pytest.mark.parametrize("case", REFUSED)
def test_every_answer_begins_with_file_and_line_and_is_three_lines_at_most(case: str) -> None:
    message = REFUSED[case]["message"]
    assert re.match(r"bench\.yaml:\d+: ", message)
    assert len(message.splitlines()) <= 3


def test_what_a_key_belongs_to_is_a_key_beside_it_that_can_have_the_value() -> None:
    classes = [Strict]
    for one in classes:
        classes += one.__subclasses__()
        marks = [mark for info in one.model_fields.values() for mark in info.metadata]
        for mark in marks:
            if isinstance(mark, BelongsTo):
                known = get_args(one.model_fields[mark.key].annotation)
                assert set(mark.values) <= set(known)


@pytest.mark.parametrize("kind", ["multiple_choice", "loglikelihood"])
def test_a_log_likelihood_is_asked_for_once_whatever_is_said_of_answers(folder: Path, kind: str) -> None:
    native = yaml.safe_load(VALID) | {"output_type": kind, "sample_params": {"num_samples": 4}}
    own = {"choices": ["a", "b"], "target": 0} if kind == "multiple_choice" else {}
    native |= {"filter_list": None, "target": TARGET} | own
    text = yaml.safe_dump({key: value for key, value in native.items() if value is not None})
    (folder / "bench.yaml").write_text(text)
    config = load_config(folder / "bench.yaml")
    assert config.samples_taken() == (1,)
    metric = {"metric_list": [{"metric": DEFAULT_METRICS[config.output_type][0], "reduction": "pass@4"}]}
    assert "1 is left; a log-likelihood is asked for once" in refused(folder, text + yaml.safe_dump(metric))


def test_sixty_mistakes_have_been_looked_at() -> None:
    assert len(REFUSED) >= 60


def test_every_mistake_of_a_file_has_its_line(folder: Path) -> None:
    text = VALID.replace("take_first", "take_frist").replace("exact_match", "exactmatch")
    assert [line.partition(": ")[0] for line in refused(folder, text).splitlines()] == [
        "bench.yaml:10",
        "bench.yaml:12",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "",
            "bench.yaml: expected a mapping of keys such as name, dataset and models; the file holds nothing",
        ),
        (
            "- a\n",
            "bench.yaml: expected a mapping of keys such as name, dataset and models; the file holds a list",
        ),
        (
            "text",
            "bench.yaml: expected a mapping of keys such as name, dataset and models; "
            "the file holds a single value",
        ),
        ("a: &x [*x]\n", "bench.yaml:1: an anchor holds itself"),
        ("<<: 3\n", "bench.yaml:1: '<<' merges mappings only"),
        ("name: !function nothing\n", "bench.yaml:1: expected !function file.function, got 'nothing'"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused(folder: Path, text: str, message: str) -> None:
    assert refused(folder, text) == message


def test_files_that_cannot_be_read_are_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"^config '.*nope\.yaml' is not there; expected a YAML file$"):
        load_config(folder / "nope.yaml")
    with pytest.raises(ConfigError, match="is a folder; expected a YAML file in it"):
        load_config(folder)
    (folder / "bench.yaml").write_bytes(b"name: \xff\n")
    with pytest.raises(ConfigError, match=r"^bench\.yaml is not UTF-8 \(byte 7\); save it as UTF-8$"):
        load_config(folder / "bench.yaml")


def test_anchors_and_merges_are_followed_and_keep_their_lines(folder: Path) -> None:
    text = VALID.replace(
        "- metric: exact_match", "- &a {metric: exact_match}\n      - {<<: *a, alias: again}"
    )
    (folder / "bench.yaml").write_text(text)
    metrics = load_config(folder / "bench.yaml").filters()[0].metric_list or ()
    assert [(metric.metric, metric.alias) for metric in metrics] == [
        ("exact_match", None),
        ("exact_match", "again"),
    ]
    found = refused(folder, text.replace("exact_match", "exactmatch"))
    assert [line.partition(": ")[0] for line in found.splitlines()] == ["bench.yaml:12", "bench.yaml:12"]


def test_anchors_that_stand_for_more_than_any_config_holds_are_refused(folder: Path) -> None:
    tens = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 7)]
    found = refused(folder, "\n".join([VALID, "a0: &a0 [x]", *tens]))
    assert "its anchors repeat more than 100000 values; write out what is meant" in found
    found = refused(folder, "\n".join([VALID, "a0: &a0 [x]", *tens[:4]]))  # some 20,000
    assert "'a4' is not a key here" in found


def test_a_zero_before_a_number_does_not_make_it_octal(folder: Path) -> None:
    text = VALID.replace("name: sums", "name: 010\nsample_params: {max_tokens: 010}")
    (folder / "bench.yaml").write_text(text)
    config = load_config(folder / "bench.yaml")
    assert (config.name, config.sample_params.max_tokens) == ("010", 10)


CHOICES = """\
name: sums
dataset: items.jsonl
prompt_template: "{{question}}"
output_type: multiple_choice
models: [qwen]
"""


def test_numbers_that_a_model_reads_are_written_as_in_the_file(folder: Path) -> None:
    (folder / "bench.yaml").write_text(
        f"{CHOICES}choices: [0.00001, 1.10, 1.1, 1.0e+16, 0x10, 1_000, 7]\ntarget: 1.10\n"
    )
    config = load_config(folder / "bench.yaml", ["statistics.ci_level=0.900"])
    assert config.choices == ("0.00001", "1.10", 1.1, "1.0e+16", "0x10", "1_000", 7)
    assert (config.target, config.statistics.ci_level) == ("1.10", 0.9)


@pytest.mark.parametrize("target", ["0x1", "+1", "1"])
def test_a_whole_number_under_target_is_an_index_however_it_is_written(folder: Path, target: str) -> None:
    (folder / "bench.yaml").write_text(f"{CHOICES}choices: [a, b]\ntarget: {target}\n")
    assert load_config(folder / "bench.yaml").target == 1


def test_a_number_with_a_point_may_be_the_right_answer(folder: Path) -> None:
    (folder / "bench.yaml").write_text(f"{VALID.replace(TARGET, '1.5')}")
    assert load_config(folder / "bench.yaml").target == "1.5"
    assert load_config(folder / "bench.yaml", ["target=[1.50, 3]"]).target == ("1.50", 3)


def test_numbers_of_overrides_are_written_as_there(folder: Path) -> None:
    (folder / "bench.yaml").write_text(f"{CHOICES}choices: [1.10, 2.20]\n")
    assert load_config(folder / "bench.yaml", ["choices.1=3.30"]).choices == ("1.10", "3.30")
    assert load_config(folder / "bench.yaml", ["choices=[a, 2.2]"]).choices == ("a", 2.2)


@pytest.mark.parametrize("lines", [("<<: *below", "choices: [1.1, b]"), ("choices: [1.1, b]", "<<: *below")])
def test_what_lies_over_a_merged_key_has_its_own_spelling_and_line(
    folder: Path, lines: tuple[str, str]
) -> None:
    text = "below: &below\n  choices: [1.10, 2.20]\n" + "\n".join(lines)
    source = parse_yaml(text, "bench.yaml", folder)
    own = text.splitlines().index("choices: [1.1, b]") + 1
    assert source.data["choices"] == [1.1, "b"]
    assert source.where(("choices", 0)) == f"bench.yaml:{own}"
    assert not [place for place in source.spellings if place[0] == "choices"]


def test_a_name_comes_from_the_file_where_none_is_given(folder: Path) -> None:
    (folder / "bench.yaml").write_text(VALID.replace("name: sums\n", ""))
    assert load_config(folder / "bench.yaml").name == "bench"


def test_without_strictness_a_plan_needs_no_models_and_imports_no_code(folder: Path) -> None:
    text = VALID.replace("models:\n  - name: qwen\n", "process_results: nope.py:nope\n")
    (folder / "bench.yaml").write_text(text)
    assert load_config(folder / "bench.yaml", strict=False).models == ()


def test_function_names_mean_the_file_beside_the_config_first(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "text.py").write_text("")
    assert function_reference("json.dumps", tmp_path) == "json.py:dumps"
    assert function_reference("tools.text.clean", tmp_path) == "tools/text.py:clean"
    assert function_reference("os.path.join", tmp_path) == "os.path:join"
    assert function_reference("nowhere.fn", tmp_path) == "nowhere.py:fn"


def test_every_key_that_takes_a_function_may_be_written_as_one() -> None:
    models, known = [EvalConfig], {EvalConfig}
    for model in models:
        for name, info in model.model_fields.items():
            if "file.py:" in (info.description or "") and "choices" not in name:
                assert takes_function(info), f"{model.__name__}.{name}"
            new = {*models_at(model, (name,)), *models_at(model, (name, 0))} - known
            models += new
            known |= new
    assert len(known) > 20


def test_a_limit_of_costs_needs_the_price_of_a_judge(folder: Path) -> None:
    judges = "judges: [{name: critic, type: openai}]"
    judge = f"scorer: {{type: llm_judge, prompt: x, {judges}, parse: {{type: number}}}}\n"
    text = VALID.partition("filter_list")[0] + judge + "limits: {max_cost: 1}\nprices: {qwen: {prompt: 1}}\n"
    assert "limits.max_cost: 'critic' has no price" in refused(folder, text)
    (folder / "bench.yaml").write_text(text.replace("qwen: {prompt: 1}", "qwen: {prompt: 1}, critic: {}"))
    assert load_config(folder / "bench.yaml").prices.of("critic") is not None


def test_functions_and_deep_nesting_in_overrides_are_refused_by_their_key(folder: Path) -> None:
    (folder / "bench.yaml").write_text(VALID)
    for override, message in (
        ("target=!function user.two", "--set target: takes no function, got !function 'user.py:two'"),
        ("name=\udcff", "--set name: holds a byte that is no UTF-8"),
        ("name=" + "[" * 2000 + "]" * 2000, "--set name: its lists and mappings are nested too deeply"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            load_config(folder / "bench.yaml", [override])
    metric = ["filter_list.0.metric_list.0.metric=!function user.metric"]
    assert load_config(folder / "bench.yaml", metric).filters()[0].metric_list


def test_a_price_of_a_model_that_is_left_out_for_another_is_no_mistake(folder: Path) -> None:
    (folder / "bench.yaml").write_text(VALID + "prices: {qwen: {prompt: 1}}\n")
    assert load_config(folder / "bench.yaml", ["models=[qwen2]"]).models[0].name == "qwen2"
    with pytest.raises(ConfigError, match="'qwen3' is no model that is asked; did you mean 'qwen2'"):
        load_config(folder / "bench.yaml", ["models=[qwen2]", "limits.max_cost=1", "prices={qwen3: {}}"])


@pytest.mark.parametrize("value", ["!!bool maybe", '!!int ""', '!!float ""', "!!int abc"])
def test_a_value_that_is_not_what_its_tag_says_is_refused_with_its_line(folder: Path, value: str) -> None:
    assert refused(folder, f"{VALID}canaries: {value}\n").startswith("bench.yaml:13: '")
    (folder / "bench.yaml").write_text(VALID)
    with pytest.raises(ConfigError, match=r"^--set canaries: '.*' can't be read"):
        load_config(folder / "bench.yaml", [f"canaries={value}"])


@pytest.mark.parametrize(("content", "line"), [(VALID.encode("utf-16-le"), 1), (b"name: a\nx: \x07\n", 2)])
def test_a_control_character_is_refused_with_its_line(folder: Path, content: bytes, line: int) -> None:
    (folder / "bench.yaml").write_bytes(content)
    with pytest.raises(ConfigError) as error:
        load_config(folder / "bench.yaml")
    assert str(error.value).startswith(f"bench.yaml:{line}: holds a control character (#x")
    assert str(error.value).endswith("; save it as UTF-8 text")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            'scorer: {type: llm_judge, judges: [qwen], prompt: "{{response}}", parse: {choices: {GOOD: 1}}}',
            "scorer.parse: 'type' is missing: expected one of choice, number, json, regex",
        ),
        ("cluster: [a, b, c]", "cluster: expected text or a list of at most 2 entries, got a list of 3"),
        ("cluster: [a]", "cluster: expected text or a list of 2 entries, got a list of 1"),
        ("cluster: []", "cluster: expected text or a list of 2 entries, got a list of 0"),
        ("process_results: 1", "process_results: expected text, got 1"),
        ("cluster: [topic, topic]", "cluster: names 'topic' twice; give one field, or two that cross"),
    ],
)
def test_no_sentence_of_the_library_is_in_a_refusal(folder: Path, lines: str, said: str) -> None:
    assert refused(folder, f"{VALID}{lines}\n").splitlines() == [f"bench.yaml:13: {said}"]


@pytest.mark.parametrize("empty", ['""', "[]", "0", "no"])
@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("- name: qwen", "- {name: qwen, config: EMPTY}", "models.0.config"),
        ("- metric: exact_match", "- {metric: exact_match, kwargs: EMPTY}", "metric_list.0.kwargs"),
        ("- function: take_first", "- {function: take_first, kwargs: EMPTY}", "filter.0.kwargs"),
    ],
)
def test_what_is_empty_but_no_mapping_counts_for_none(
    folder: Path, old: str, new: str, place: str, empty: str
) -> None:
    said = refused(folder, VALID.replace(old, new.replace("EMPTY", empty)))
    assert f"{place}: expected a mapping, got" in said
    (folder / "bench.yaml").write_text(VALID.replace(old, new.replace("EMPTY", "null")))
    load_config(folder / "bench.yaml")


@pytest.mark.parametrize(
    "line", ["keep_trailing_space: 0", "sample_params: {logprobs: 1}", 'mutual_information: "yes"']
)
def test_a_number_or_a_text_is_no_boolean(folder: Path, line: str) -> None:
    assert "expected true or false, got" in refused(folder, f"{VALID}{line}\n")
