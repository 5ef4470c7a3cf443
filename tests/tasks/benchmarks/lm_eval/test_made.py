"""Rows made from a definition's own templates and functions, and definitions tried on them."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.config.load import load_configs, validate_configs
from metrics.errors import ConfigError
from tasks.benchmarks.lm_eval.columns import columns_of
from tasks.benchmarks.lm_eval.shapes import RowMaker
from tasks.benchmarks.lm_eval.trial import Trial, try_definition
from tasks.benchmarks.lm_eval.yaml import FunctionName
from tasks.usercode.load import UserModules


def row_of(config: dict[str, Any], folder: Path, seed: int = 1) -> dict[str, Any]:
    """One made row of a definition whose functions are in ``utils.py`` of the folder."""
    modules = UserModules(own=True)
    shape = columns_of(config, lambda name: modules.function(name, folder))
    (row,) = RowMaker(shape, seed).rows(1)
    return row


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"doc_to_text": "{{a.strip()}} {{b}}"}, {"a": str, "b": str}),
        ({"doc_to_text": "question", "doc_to_target": "answer"}, {"question": str, "answer": str}),
        ({"doc_to_target": "label", "doc_to_choice": ["x", "y"]}, {"label": int}),
        ({"doc_to_choice": "choices"}, {"choices": list}),
        ({"doc_to_choice": "{{choices.text}}"}, {"choices": dict}),
        ({"doc_to_text": "{% for c in options %}{{c.name}}{% endfor %}"}, {"options": list}),
        ({"doc_to_text": "{{choices[0]}} {{choices|join(' ')}}"}, {"choices": list}),
        ({"doc_to_target": "{{['A','B'].index(key)}}"}, {"key": str}),
        (
            {"doc_to_text": "{% if a != 'x' and b is not none and 'CSAT' in c %}{% endif %}"},
            {"a": str, "b": str, "c": str},
        ),
        ({"doc_to_choice": "{{answers|map(attribute='text')|list}}"}, {"answers": list}),
    ],
)
def test_templates_say_what_columns_hold(
    config: dict[str, Any], expected: dict[str, type], tmp_path: Path
) -> None:
    row = row_of(config, tmp_path)
    assert {name: type(value) for name, value in row.items()} == expected
    assert row == row_of(config, tmp_path)


def test_another_seed_makes_other_rows(tmp_path: Path) -> None:
    config = {"doc_to_text": "{{a}}", "doc_to_target": "label", "doc_to_choice": ["x", "y"]}
    shape = columns_of(config, lambda name: pytest.fail(name))
    assert RowMaker(shape, 1).rows(9) == RowMaker(shape, 1).rows(9) != RowMaker(shape, 2).rows(9)
    assert {row["label"] for row in RowMaker(shape, 1).rows(50)} == {0, 1}


def test_constants_relations_and_nesting_are_kept(tmp_path: Path) -> None:
    (tmp_path / "utils.py").write_text(
        "import json\nfrom functools import partial\nfrom .other import MAP\n"
        "def _keep(docs, subject):\n    name = f'sub_{subject}'\n"
        "    return docs.filter(lambda row: row['subject'] == name).map(_one)\n"
        "def _one(row):\n    inner = json.loads(row['packed'])\n"
        "    return {'q': inner['q'].strip(), 'gold': row['choices'].index(row['answer']),\n"
        "            'kind': MAP[row['kind']], 'deep': row['a']['b'][0]['c'].lower()}\n"
        "process = partial(_keep, subject='maths')\n"
    )
    (tmp_path / "other.py").write_text("MAP = {'x': 1, 'y': 2}\n")
    row = row_of({"process_docs": FunctionName("utils.py:process")}, tmp_path)
    assert row["subject"] == "sub_maths"
    assert isinstance(json.loads(row["packed"])["q"], str)
    assert row["answer"] in row["choices"]
    assert row["kind"] in ("x", "y")
    assert isinstance(row["a"]["b"][0]["c"], str)
    asked = {"doc_to_target": "{{choices.index(targets[0])}} {{scores.index(1)}}"}
    row = row_of(asked, tmp_path)
    assert row["targets"][0] in row["choices"]
    assert 1 in row["scores"]


TASK = """task: mine
dataset_path: nobody/has_it
test_split: test
output_type: {output_type}
doc_to_text: !function utils.text
doc_to_target: !function utils.target
{more}
"""


def tried(folder: Path, utils: str, output_type: str = "generate_until", more: str = "") -> Trial:
    (folder / "utils.py").write_text(utils)
    (folder / "mine.yaml").write_text(TASK.format(output_type=output_type, more=more))
    (config,) = load_configs(folder / "mine.yaml", (), strict=False)
    assert config.harness is not None
    return try_definition(config.harness, config.base_dir, config.scoring())


FUNCTIONS = "def text(doc): return doc['q']\ndef target(doc): return doc['a']\n"


def test_a_guess_that_fails_is_changed_until_the_functions_run(tmp_path: Path) -> None:
    trial = tried(
        tmp_path,
        "def text(doc): return doc['q'] + str(float(doc['weight']) * 2)\n"
        "def target(doc): return doc['a'].split('####')[1].strip()\n",
    )
    assert trial.ran, trial.reason
    (row,) = trial.rows(1, seed=7)
    assert float(row["weight"])
    assert "####" in row["a"]


def test_a_column_that_shows_only_when_it_is_missed_is_made(tmp_path: Path) -> None:
    trial = tried(tmp_path, "def text(doc): return doc['shot_' + str(1)]\ndef target(doc): return 'x'\n")
    assert trial.ran, trial.reason
    assert "shot_1" in trial.shape.fields


def test_everything_is_run_to_the_aggregation(tmp_path: Path) -> None:
    more = (
        "process_results: !function utils.score\n"
        "metric_list:\n  - {metric: mine, aggregation: !function utils.total}\n"
    )
    scoring = FUNCTIONS + "def score(docs, results): return {'mine': (docs['a'], results[0])}\n"
    assert tried(tmp_path, scoring + "def total(items): return float(len(items))\n", more=more).ran
    failing = tried(tmp_path, scoring + "def total(items): raise RuntimeError('no total')\n", more=more)
    assert not failing.ran
    assert "no total" in str(failing.reason)


@pytest.mark.parametrize(
    ("output_type", "more"),
    [
        ("multiple_choice", "doc_to_choice: ['a', 'b']\nmetric_list: [{metric: acc}, {metric: f1}]"),
        ("multiple_choice", "doc_to_choice: ['a', 'b']\nmetric_list: [{metric: acc_mutual_info}]"),
        ("loglikelihood", ""),
        ("loglikelihood_rolling", ""),
        ("generate_until", "num_fewshot: 2\ntraining_split: train"),
        (
            "generate_until",
            "repeats: 8\nfilter_list: [{name: maj, filter: [{function: take_first_k, k: 8},"
            " {function: majority_vote}, {function: take_first}]}]",
        ),
    ],
)
def test_every_output_type_is_tried(tmp_path: Path, output_type: str, more: str) -> None:
    index = "def text(doc): return doc['q']\ndef target(doc): return 1\n"
    trial = tried(tmp_path, index if "choice" in output_type else FUNCTIONS, output_type, more)
    assert trial.ran, trial.reason


def test_what_can_not_be_imported_or_built_is_refused_and_what_did_not_run_is_a_warning(
    tmp_path: Path,
) -> None:
    texts = {
        "good": FUNCTIONS,
        "missing": "import a_library_that_nobody_has\n" + FUNCTIONS,
        "never": "def text(doc): raise RuntimeError('never')\ndef target(doc): return 'x'\n",
        "exits": "import sys\nsys.exit('no')\n" + FUNCTIONS,
    }
    paths = []
    for name, utils in texts.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "utils.py").write_text(utils)
        (folder / "mine.yaml").write_text(TASK.format(output_type="generate_until", more=""))
        paths.append(folder / "mine.yaml")
    found = dict(zip(texts, validate_configs(paths), strict=True))
    assert [found[name]["status"] for name in texts] == ["ok", "refused", "ok", "refused"]
    assert found["good"]["warnings"] == []
    assert "pip install a_library_that_nobody_has" in found["missing"]["reason"]
    (warning,) = found["never"]["warnings"]
    assert warning.startswith("mine: not run on made rows: ")
    assert "never" in warning
    with pytest.raises(ConfigError):
        tried(tmp_path, texts["exits"])


def test_code_of_a_model_is_never_run_on_made_rows(tmp_path: Path) -> None:
    trial = tried(tmp_path, FUNCTIONS, more="unsafe_code: true")
    assert (trial.ran, trial.reason) == (
        False,
        "it runs what a model writes in files of its own (unsafe_code)",
    )


def test_a_function_without_an_end_ends_the_attempt_and_not_the_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.benchmarks.lm_eval.trial.ENDLESS", 0.3)
    monkeypatch.setattr("tasks.benchmarks.lm_eval.trial.SECONDS", 0.3)
    trial = tried(
        tmp_path,
        "def text(doc):\n"
        "    while True:\n"
        "        try:\n"
        "            doc['q']\n"
        "        except Exception:\n"
        "            pass\n"
        "def target(doc): return doc['a']\n",
    )
    assert (trial.ran, trial.reason) == (False, "EndlessError: not done after 0.3 s on made rows")


def test_a_package_whose_import_was_interrupted_can_be_imported_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.benchmarks.lm_eval.trial.ENDLESS", 0.3)
    monkeypatch.setattr("tasks.benchmarks.lm_eval.trial.SECONDS", 0.3)
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "a_heavy_package"
    package.mkdir()
    (package / "words.py").write_text("WORDS = ['x']\n")
    (package / "__init__.py").write_text(
        "import pathlib\nimport a_heavy_package.words\n"
        f"while pathlib.Path({str(tmp_path / 'slow')!r}).exists(): sum(range(9999))\n"
        "WORDS = a_heavy_package.words.WORDS\n"
    )
    (tmp_path / "slow").touch()
    utils = "def text(doc):\n    import a_heavy_package\n    return doc['q'] + a_heavy_package.WORDS[0]\n"
    utils += "def target(doc): return doc['a']\n"
    assert str(tried(tmp_path, utils).reason).startswith("EndlessError")
    (tmp_path / "slow").unlink()
    trial = tried(tmp_path, utils)
    assert trial.ran, trial.reason


def test_a_function_that_exits_is_one_that_does_not_run(tmp_path: Path) -> None:
    trial = tried(tmp_path, "import sys\ndef text(doc): sys.exit('enough')\ndef target(doc): return 'x'\n")
    assert not trial.ran
    assert str(trial.reason).endswith("utils.py:text failed: SystemExit: enough")


@pytest.mark.services
def test_what_never_returns_costs_itself_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a pattern nor an import that runs away lets other code of their process end them."""
    monkeypatch.setattr("tasks.benchmarks.lm_eval.trial.SECONDS_APART", 2.0)
    runaway = "import re\nrunning = lambda: re.search('(a+)+$', 'a' * 60 + 'b')\n"
    texts = {
        "good": FUNCTIONS,
        "pattern": runaway + "def text(doc): return running()\ndef target(doc): return 'x'\n",
        "import": runaway + "running()\n" + FUNCTIONS,
        "dies": "import os\ndef text(doc): os._exit(3)\ndef target(doc): return 'x'\n",
        "reads": "def text(doc): return input()\ndef target(doc): return 'x'\n",
        "last": FUNCTIONS,
    }
    paths = []
    for name, utils in texts.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "utils.py").write_text(utils)
        (folder / "mine.yaml").write_text(TASK.format(output_type="generate_until", more=""))
        paths.append(folder / "mine.yaml")
    found = dict(zip(texts, validate_configs(paths), strict=True))
    assert {name: entry["status"] for name, entry in found.items()} == {
        "good": "ok", "pattern": "ok", "import": "refused", "dies": "ok", "reads": "ok",
        "last": "ok",
    }  # fmt: skip
    assert found["good"]["warnings"] == found["last"]["warnings"] == []
    assert found["pattern"]["warnings"] == ["mine: not run on made rows: took more than 2 s"]
    assert found["import"]["reason"] == "benchmark mine: its functions can't be imported: took more than 2 s"
    assert found["dies"]["warnings"] == [
        "mine: not run on made rows: ended the process that worked on it (exit code 3)"
    ]
    assert "EOFError" in found["reads"]["warnings"][0]
