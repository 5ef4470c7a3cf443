"""What a config file may get wrong, and the sentence that answers it."""

from pathlib import Path

import pytest

from flows.loading import load_config
from flows.yaml_source import function_reference
from metrics.errors import ConfigError

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

USER = """\
def two(a, b):
    return a

def metric(references, predictions, scale=1):
    return 1.0

CONSTANT = 3
"""

TOP_LEVEL = (
    "(known: name, output_type, dataset, prompt_template, prompt_templates, messages, system_prompt, gen_prefix, target, "
    "choices, target_delimiter, fewshot, cluster, mutual_information, harness, base_dir, models, sample_params, "
    "filter_list, metric_list, process_results, scorer, evaluation_methods, metrics, facets, statistics, errors, limits, "
    "prices, config_file)"
)
CATALOG = "(python -m flows.catalog lists them)"

# case: (text that VALID has, what stands in its place, the whole message)
REFUSED = {
    "unknown key": (
        "filter_list:",
        "filterlist:",
        f"bench.yaml:7: filterlist: 'filterlist' is not a key here; did you mean 'filter_list'? {TOP_LEVEL}",
    ),
    "unknown key of a model": (
        "  - name: qwen",
        "  - name: qwen\n    kind: demo",
        "bench.yaml:7: models.0.kind: 'kind' is not a key here "
        "(known: name, type, config, sample_params, tokenizer, max_length, identity)",
    ),
    "unknown key of a filter": (
        "    metric_list:",
        "    metrics:",
        "bench.yaml:11: filter_list.0.metrics: 'metrics' is not a key here; did you mean 'metric_list'? "
        "(known: name, filter, metric_list)",
    ),
    "unknown metric": (
        "exact_match",
        "exactmatch",
        "bench.yaml:12: filter_list.0.metric_list.0.metric: metric 'exactmatch' is not known; did you mean 'exact_match'? "
        + CATALOG,
    ),
    "unknown argument of a metric": (
        "- metric: exact_match",
        "- metric: exact_match\n        ignore_cas: true",
        "bench.yaml:13: filter_list.0.metric_list.0.ignore_cas: metric 'exact_match' takes no argument 'ignore_cas'; did "
        "you mean 'ignore_case'? (it takes ignore_case, ignore_numbers, ignore_punctuation, regexes_to_ignore)",
    ),
    "metric of another output type": (
        "exact_match",
        "acc",
        "bench.yaml:12: filter_list.0.metric_list.0.metric: metric 'acc' is made for multiple_choice, loglikelihood, not "
        "for generate_until (python -m flows.catalog metrics lists them)",
    ),
    "unknown reduction": (
        "- metric: exact_match",
        "- {metric: exact_match, reduction: avrage}",
        f"bench.yaml:12: filter_list.0.metric_list.0.reduction: reduction 'avrage' is not known {CATALOG}",
    ),
    "unknown aggregation": (
        "- metric: exact_match",
        "- {metric: exact_match, aggregation: meen}",
        "bench.yaml:12: filter_list.0.metric_list.0.aggregation: aggregation 'meen' is not known; did you mean 'mean'? "
        + CATALOG,
    ),
    "unknown filter": (
        "take_first",
        "take_frist",
        "bench.yaml:10: filter_list.0.filter.0.function: filter 'take_frist' is not known; did you mean 'take_first'? "
        + CATALOG,
    ),
    "unknown argument of a filter": (
        "- function: take_first",
        "- {function: take_first_k, n: 1}",
        "bench.yaml:10: filter_list.0.filter.0.n: filter 'take_first_k' has no argument 'n' (its arguments: k)",
    ),
    "unknown model type": (
        "- name: qwen",
        "- {name: qwen, type: opanai}",
        "bench.yaml:6: models.0.type: expected one of openai, replay, demo, got 'opanai'; did you mean 'openai'?",
    ),
    "unknown scorer": (
        "models:",
        "scorer: {type: llm_jugde}\nmodels:",
        "bench.yaml:5: scorer.type: scorer type 'llm_jugde' is not known; did you mean 'llm_judge'? (known: generation, "
        "loglikelihood, process_results, reward_model, llm_judge, ensemble, agreement, or file.py:Class)",
    ),
    "unknown output type": (
        "dataset:",
        "output_type: generate\ndataset:",
        "bench.yaml:2: output_type: expected one of generate_until, multiple_choice, loglikelihood, "
        "loglikelihood_rolling, got 'generate'; did you mean 'generate_until'?",
    ),
    "no dataset": (
        "dataset: items.jsonl\n",
        "",
        "bench.yaml:1: dataset: 'dataset' is missing: a file of items, or a mapping with path, function or hub",
    ),
    "no prompt": (
        'prompt_template: "{{question}}"\n',
        "",
        "bench.yaml:1: a benchmark needs one of prompt_template, prompt_templates, messages",
    ),
    "no model": (
        "models:\n  - name: qwen\n",
        "",
        "bench.yaml:1: 'models' is missing: which models to evaluate, as in models: [{name: qwen, config: {base_url: …}}]",
    ),
    "a model without a name": (
        "- name: qwen",
        "- {type: demo}",
        "bench.yaml:6: models.0.name: 'name' is missing",
    ),
    "text where a number belongs": (
        "models:",
        "sample_params: {max_tokens: many}\nmodels:",
        "bench.yaml:5: sample_params.max_tokens: expected an integer, got 'many'",
    ),
    "a number where text belongs": ("name: sums", "name: 7", "bench.yaml:1: name: expected text, got 7"),
    "a mapping where a list belongs": (
        "models:\n  - name: qwen",
        "models: {name: qwen}",
        "bench.yaml:5: models: expected a list, got a mapping with name",
    ),
    "a number out of range": (
        "models:",
        "errors: {max_rate: 2}\nmodels:",
        "bench.yaml:5: errors.max_rate: expected less than or equal to 1, got 2",
    ),
    "a name that is no file name": (
        "name: sums",
        "name: sums/hard",
        "bench.yaml:1: name: expected text without slashes and control characters, got 'sums/hard'",
    ),
    "credentials in an address": (
        "- name: qwen",
        "- name: qwen\n    config: {base_url: 'http://me:secret@host/v1'}",
        "bench.yaml:7: models.0.config.base_url: holds credentials; name the environment variable with the key in "
        "api_key_env instead",
    ),
    "two models of a name": (
        "  - name: qwen",
        "  - name: qwen\n  - {name: qwen, type: demo}",
        "bench.yaml:7: models.1: 'qwen' is there twice; give each entry a name of its own",
    ),
    "two metrics that nothing tells apart": (
        "- metric: exact_match",
        "- exact_match\n      - exact_match",
        "bench.yaml:8: filter_list.0: filter 'strict': metric 'exact_match' is listed twice; give one of them an alias",
    ),
    "a key twice": (
        "dataset: items.jsonl",
        "dataset: items.jsonl\nname: again",
        "bench.yaml:3: the key 'name' is there twice in one mapping",
    ),
    "an unquoted template": (
        '"{{question}}"',
        "{{question}}",
        'bench.yaml:3: a key is text; a template has to be quoted, as in "{{question}}"',
    ),
    "a tab": (
        "  - name: qwen",
        "\t- name: qwen",
        "bench.yaml:6: not valid YAML: found character that cannot start any token; indent with spaces, not tabs, and "
        "quote text that begins with a special character",
    ),
    "an unknown tag": (
        "name: sums",
        "name: !env SUMS",
        "bench.yaml:1: the tag !env is not known here; known is !function",
    ),
    "a template that is none": (
        "{{question}}",
        "{% if question %}",
        "bench.yaml:3: prompt_template: template is not a Jinja2 template: line 1: Unexpected end of template. Jinja was "
        "looking for the following tags: 'elif' or 'else' or 'endif'. The innermost block that needs to be closed is 'if'.",
    ),
    "a reduction beyond the samples": (
        "    filter:\n      - function: take_first\n    metric_list:\n      - metric: exact_match",
        "    metric_list:\n      - {metric: exact_match, reduction: [mean, pass@8]}",
        "bench.yaml:10: filter_list.0.metric_list.0.reduction: pass@8 of 'exact_match' needs 8 repeats of an item, and 1 is "
        "left; raise sample_params.num_samples (now 1)",
    ),
    "a reduction beyond what the filter keeps": (
        "- metric: exact_match",
        "- {metric: exact_match, reduction: maj@8}\nsample_params: {num_samples: 8}",
        "bench.yaml:12: filter_list.0.metric_list.0.reduction: maj@8 of 'exact_match' needs 8 repeats of an item, and 1 is "
        "left; filter 'strict' keeps 1 of 8, so let it keep more",
    ),
    "a filter beyond the samples": (
        "- function: take_first",
        "- {function: take_first_k, k: 4}",
        "bench.yaml:9: filter_list.0.filter: filter 'strict': take_first_k needs 4 repeats and there are 1; raise "
        "num_samples or lower k",
    ),
    "pass_at_k beyond the samples": (
        "models:",
        "evaluation_methods: [exact_match]\nmetrics:\n  - {name: p, type: pass_at_k, params: {k: 2, num_trials: 2}}\nmodels:",
        "bench.yaml:7: metrics.0: metric 'p' needs 4 samples of every item (k × num_trials), but sample_params.num_samples "
        "is 1; raise it or lower k or num_trials",
    ),
    "metrics over nothing": (
        "models:",
        "metrics: [count]\nmodels:",
        "bench.yaml:5: metrics: are computed over the results of evaluation_methods, and there are none; metrics of the "
        "responses themselves go into metric_list",
    ),
    "choices of a generation": (
        "models:",
        "choices: [a, b]\nmodels:",
        "bench.yaml:5: choices: belong to output_type multiple_choice, and this one is generate_until",
    ),
    "a function that is not there": (
        "models:",
        "process_results: user.py:nope\nmetric_list: [exact_match]\nmodels:",
        "bench.yaml:5: process_results: 'user.py:nope': user.py defines no 'nope' (it has metric, two)",
    ),
    "a file that is not there": (
        "models:",
        "process_results: !function nope.fn\nmetric_list: [exact_match]\nmodels:",
        "bench.yaml:5: process_results: 'nope.py' is not there: expected a Python file at {folder}/nope.py",
    ),
    "something that is no function": (
        "models:",
        "process_results: user.py:CONSTANT\nmetric_list: [exact_match]\nmodels:",
        "bench.yaml:5: process_results: 'user.py:CONSTANT' is not a function: it is of type int",
    ),
    "a function that does not take its keywords": (
        "models:",
        "process_results: user.py:two\nmetric_list: [exact_match]\nmodels:",
        "bench.yaml:5: process_results: 'user.py:two' is called with doc, results: missing a required argument: 'a'",
    ),
    "a keyword that a user's metric does not take": (
        "- metric: exact_match",
        "- {metric: user.py:metric, factor: 2}",
        "bench.yaml:12: filter_list.0.metric_list.0.factor: metric 'metric' takes no argument 'factor' (it takes scale)",
    ),
    "process_results without names": (
        "    metric_list:\n      - metric: exact_match\n",
        "process_results: user.py:two\n",
        "bench.yaml:11: process_results: needs metric_list beside it: the names of the metrics it returns",
    ),
    "an evaluation method's function": (
        "models:",
        "evaluation_methods: [{name: own, function: user.py:two}]\nmodels:",
        "bench.yaml:5: evaluation_methods.0.function: 'user.py:two' is called with response, ground_truth, "
        "inference_result: missing a required argument: 'a'",
    ),
    "a parameter that a loader does not take": (
        "dataset: items.jsonl",
        "dataset: {function: user.py:two, params: {c: 1}}",
        "bench.yaml:2: dataset.function: dataset user.py:two can't be called with c: missing a required argument: 'a'",
    ),
}


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
    old, new, message = REFUSED[case]
    assert old in VALID
    found = refused(folder, VALID.replace(old, new, 1))
    assert found == message.replace("{folder}", str(folder))


def test_every_mistake_of_a_file_has_its_line(folder: Path) -> None:
    text = VALID.replace("take_first", "take_frist").replace("exact_match", "exactmatch")
    assert [line.partition(": ")[0] for line in refused(folder, text).splitlines()] == ["bench.yaml:10", "bench.yaml:12"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "bench.yaml: expected a mapping of keys such as name, dataset and models; the file holds nothing"),
        ("- a\n", "bench.yaml: expected a mapping of keys such as name, dataset and models; the file holds a list"),
        ("text", "bench.yaml: expected a mapping of keys such as name, dataset and models; the file holds a single value"),
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
    text = VALID.replace("- metric: exact_match", "- &a {metric: exact_match}\n      - {<<: *a, alias: again}")
    (folder / "bench.yaml").write_text(text)
    metrics = load_config(folder / "bench.yaml").filters()[0].metric_list or ()
    assert [(metric.metric, metric.alias) for metric in metrics] == [("exact_match", None), ("exact_match", "again")]
    found = refused(folder, text.replace("exact_match", "exactmatch"))
    assert [line.partition(": ")[0] for line in found.splitlines()] == ["bench.yaml:12", "bench.yaml:12"]


def test_a_name_comes_from_the_file_where_none_is_given(folder: Path) -> None:
    (folder / "bench.yaml").write_text(VALID.replace("name: sums\n", ""))
    assert load_config(folder / "bench.yaml").name == "bench"


def test_without_strictness_a_plan_needs_no_models_and_imports_no_code(folder: Path) -> None:
    text = VALID.replace("models:\n  - name: qwen\n", "process_results: nope.py:nope\nmetric_list: [exact_match]\n")
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
