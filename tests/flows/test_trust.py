"""Templates are data, and a folder's code runs unasked only where nobody else can have written it."""

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.config.load import validate_configs
from metrics.errors import NightjarError
from scorers.grading import render
from tasks.benchmarks.lm_eval.documents import render_template
from tasks.benchmarks.prompts import Template
from tasks.datasets.item import Item
from tasks.usercode import load
from tasks.usercode.load import load_function
from tests.flows.conftest import Evaluate

REACHES = (
    "{{ cycler.__init__.__globals__.os.system('touch ' ~ mark) }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ lipsum.__globals__['os'].popen('touch ' ~ mark).read() }}",
    "{{ (mark|attr('__class__')).__mro__ }}",
    "{% set x = namespace.__init__.__globals__ %}{{ x.sys }}",
    "{{ '{0.__class__.__base__}'.format(mark) }}",
)


@pytest.fixture(params=REACHES)
def reaching(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_native_template_reaches_nothing_of_python(reaching: str, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    item = Item("1", 0, {"mark": str(mark)}, None)
    with pytest.raises(NightjarError, match=r"unsafe|undefined|not defined"):
        Template(reaching, "prompt_template").text(item)
    if reaching.count("{{") == 1 and reaching.startswith("{{"):
        with pytest.raises(NightjarError):
            Template(reaching, "target").value(item)
    assert not mark.exists()


def test_a_template_of_the_harness_reaches_nothing_of_python(reaching: str, tmp_path: Path) -> None:
    with pytest.raises(NightjarError):
        render_template(reaching, {"mark": str(tmp_path / "ran")})
    assert not (tmp_path / "ran").exists()


def test_a_grading_prompt_reaches_nothing_of_python(reaching: str, tmp_path: Path) -> None:
    with pytest.raises(NightjarError):
        render(reaching, {"mark": str(tmp_path / "ran")}, "judge")
    assert not (tmp_path / "ran").exists()


def test_what_templates_are_used_for_is_as_before() -> None:
    text = (
        "{% for c in choices %}{{ loop.index }}. {{ c.strip() | upper }}\n{% endfor %}"
        "{{ '%.2f' % x }}{{ d['k'] }}"
    )
    fields: dict[str, Any] = {"choices": [" a", "b "], "x": 1.234, "d": {"k": [1]}}
    expected = "1. A\n2. B\n1.23[1]"
    assert Template(text, "prompt").text(Item("1", 0, fields, None)) == expected
    assert render_template(text, fields) == expected
    appended = "{% set _ = choices.append('c') %}{{ choices | length }}"  # some harness templates do
    assert render_template(appended, {"choices": ["a"]}) == "2"


CONFIG = {
    "name": "shared",
    "output_type": "generate_until",
    "dataset": "items.jsonl",
    "prompt_template": "{{question}}",
    "target": "{{answer}}",
    "models": [{"name": "demo", "type": "demo"}],
    "metric_list": [{"metric": "own", "function": "own.py:own"}],
}


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that every user can write to, with a config and its metric, which leaves a mark."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.delenv("NIGHTJAR_TRUST", raising=False)
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "items.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')
    (folder / "own.py").write_text(
        "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n\n"
        "def own(references, predictions):\n    return 1.0\n"
    )
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    yield folder
    load.trust_what_is_named(False)


def test_code_of_a_folder_that_others_write_to_runs_once_it_is_trusted(
    shared: Path, evaluate: Evaluate
) -> None:
    config = shared / "config.yaml"
    for more in ((), ("--dry-run",)):
        refused = evaluate(config, *more)
        assert refused.code == 2
        assert "--trust" in refused.err
        assert "every user can write to" in refused.err
    assert not (shared / "ran").exists()
    trusted = evaluate(config, "--trust", "--json")
    assert trusted.code == 0, trusted.err
    again = evaluate(config, "--json")
    assert again.code == 0, again.err
    assert (shared / "ran").exists()
    kept = shared.parent / "settings" / "nightjar" / "trusted"
    assert kept.read_text().splitlines()[0] == str(shared)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert {path.name for path in shared.iterdir()} <= {
        "items.jsonl",
        "own.py",
        "config.yaml",
        "ran",
        "__pycache__",
    }


def test_functions_of_such_a_folder_are_not_validated_until_it_is_trusted(shared: Path) -> None:
    """They run in a process of their own, which is told what this one was."""
    (shared / "task.yaml").write_text(
        "task: mine\ndataset_path: nobody/has_it\ntest_split: test\ndoc_to_text: !function own.text\n"
        "doc_to_target: a\n"
    )
    with (shared / "own.py").open("a") as file:
        file.write("def text(doc):\n    return doc['q']\n")
    (refused,) = validate_configs([shared / "task.yaml"])
    assert (refused["status"], "--trust" in refused["reason"]) == ("refused", True)
    assert not (shared / "ran").exists()
    load.trust_what_is_named()
    (trusted,) = validate_configs([shared / "task.yaml"])
    assert (trusted["status"], trusted["warnings"]) == ("ok", [])
    assert (shared / "ran").exists()


def test_a_suite_runs_such_code_once_it_is_trusted(shared: Path, suite_night: Evaluate) -> None:
    (shared / "suite.yaml").write_text(yaml.safe_dump({"name": "s", "benchmarks": ["config.yaml"]}))
    refused = suite_night(shared / "suite.yaml")
    assert (refused.code, "flows.suite) once with --trust" in refused.err) == (2, True)
    assert not (shared / "ran").exists()
    trusted = suite_night(shared / "suite.yaml", "--trust")
    assert trusted.code == 0, trusted.err
    assert suite_night(shared / "suite.yaml").code == 0
    assert (shared / "ran").exists()


def test_a_config_of_such_a_folder_names_no_function_of_a_package_either(
    shared: Path, evaluate: Evaluate
) -> None:
    """Its arguments are what runs: no Python file is needed for it."""
    mark = shared.parent / "ran-by-subprocess"
    command = {"function": "subprocess:check_output", "params": {"args": ["touch", str(mark)]}}
    plain = {**CONFIG, "dataset": command, "metric_list": ["exact_match"]}
    (shared / "config.yaml").write_text(yaml.safe_dump(plain))
    refused = evaluate(shared / "config.yaml", "--dry-run")
    assert (refused.code, "--trust" in refused.err) == (2, True)
    assert not mark.exists()


def test_a_config_without_code_needs_no_trust(shared: Path, evaluate: Evaluate) -> None:
    (shared / "config.yaml").write_text(yaml.safe_dump({**CONFIG, "metric_list": ["exact_match"]}))
    assert evaluate(shared / "config.yaml", "--json").code == 0


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (lambda folder: folder.chmod(0o755), False),
        (lambda folder: folder.chmod(0o700), False),
        (lambda folder: (folder.chmod(0o700), (folder / "own.py").chmod(0o666)), True),
        (lambda folder: (folder.chmod(0o700), _neighbour(folder).chmod(0o666)), True),
        (lambda folder: (os.chown(folder, 0, _foreign_group()), folder.chmod(0o770)), True),
    ],
    ids=["others read", "private", "its file is open", "a file that it imports is open", "a group's"],
)
def test_who_can_write_decides(change: Any, refused: bool, shared: Path) -> None:
    if os.geteuid() != 0 and refused:
        pytest.skip("needs root to give a folder to another group")
    change(shared)
    if refused:
        with pytest.raises(NightjarError, match="NIGHTJAR_TRUST"):
            load_function("own.py:own", shared)
    else:
        assert load_function("own.py:own", shared)([], []) == 1.0
    assert (shared / "ran").exists() is not refused


def test_workers_are_told_by_their_environment(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTJAR_TRUST", f"/somewhere/else{os.pathsep}{shared.parent}")
    assert load_function("own.py:own", shared)([], []) == 1.0


def test_a_copy_beside_a_trusted_folder_is_not_trusted(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTJAR_TRUST", str(shared))
    copy = shared.with_name("shared-too")
    shutil.copytree(shared, copy)
    copy.chmod(0o777)
    with pytest.raises(NightjarError, match="--trust"):
        load_function("own.py:own", copy)


def _neighbour(folder: Path) -> Path:
    (folder / "beside.py").write_text("X = 1\n")
    (folder / "own.py").write_text("import beside\n" + (folder / "own.py").read_text())
    return folder / "beside.py"


def _foreign_group() -> int:
    return 12345
