"""Reading definitions: includes, functions by name, and errors that name the place."""

from pathlib import Path

import pytest

from metrics.errors import ConfigError
from tasks.benchmarks.lm_eval.yaml import FunctionName, Reader


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_yaml", ".yaml").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_local_keys_win_over_included_ones_and_later_includes_over_earlier(tmp_path):
    write(
        tmp_path,
        one_yaml="a: 1\nb: 1\nc: 1",
        two_yaml="b: 2\nc: 2",
        task_yaml="include: [one.yaml, two.yaml]\nc: 3",
    )
    assert Reader().read(tmp_path / "task.yaml") == {"a": 1, "b": 2, "c": 3}


def test_include_is_shallow_and_relative_to_its_own_file(tmp_path):
    write(
        tmp_path,
        base_yaml="metadata: {version: 1, note: old}",
        deep__middle_yaml="include: ../base.yaml\nx: 1",
        task_yaml="include: deep/middle.yaml\nmetadata: {version: 2}",
    )
    assert Reader().read(tmp_path / "task.yaml") == {"metadata": {"version": 2}, "x": 1}


def test_a_diamond_of_includes_is_fine(tmp_path):
    write(
        tmp_path,
        base_yaml="a: 1",
        left_yaml="include: base.yaml\nl: 1",
        right_yaml="include: base.yaml\nr: 1",
        task_yaml="include: [left.yaml, right.yaml]",
    )
    assert Reader().read(tmp_path / "task.yaml") == {"a": 1, "l": 1, "r": 1}


def test_a_circle_of_includes_is_refused_with_its_path(tmp_path):
    write(tmp_path, a_yaml="include: b.yaml", b_yaml="include: c.yaml", c_yaml="include: a.yaml")
    with pytest.raises(ConfigError, match=r"circle: a\.yaml → b\.yaml → c\.yaml → a\.yaml"):
        Reader().read(tmp_path / "a.yaml")


def test_task_list_is_not_inherited(tmp_path):
    write(tmp_path, base_yaml="task_list: [{task: x}]\na: 1", task_yaml="include: base.yaml\ntask: y")
    assert Reader().read(tmp_path / "task.yaml") == {"a": 1, "task": "y"}


def test_a_function_is_looked_for_beside_the_file_that_names_it_and_then_as_a_module(tmp_path):
    write(
        tmp_path,
        shared__utils_py="raise RuntimeError('imported')",
        shared__base_yaml="one: !function utils.first\ntwo: !function os.path.join",
        task_yaml="include: shared/base.yaml",
    )
    config = Reader().read(tmp_path / "task.yaml")
    assert config["one"] == f"{tmp_path}/shared/utils.py:first"
    assert config["two"] == "os.path:join"
    assert type(config["one"]) is FunctionName


def test_a_package_beside_the_file_is_found_by_its_dotted_name(tmp_path):
    write(tmp_path, lib__more_py="", task_yaml="fn: !function lib.more.go")
    assert Reader().read(tmp_path / "task.yaml")["fn"] == f"{tmp_path}/lib/more.py:go"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task: x\n  y: [", r"task\.yaml:2: "),
        ("fn: !function alone", r"task\.yaml:1: !function takes module\.function, got 'alone'"),
        ("- a\n- b", r"task\.yaml: expected a mapping of keys, got list"),
        ("include: 3", r"include takes a file name or a list of them, got 3"),
        ("include: gone.yaml", r"task\.yaml: includes .*gone\.yaml, which can't be read: No such file"),
        ("a: !unknown x", r"task\.yaml:1: could not determine a constructor"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(tmp_path, text, message):
    write(tmp_path, task_yaml=text)
    with pytest.raises(ConfigError, match=message):
        Reader().read(tmp_path / "task.yaml")


def test_a_changed_file_is_read_again(tmp_path):
    write(tmp_path, task_yaml="a: 1")
    assert Reader().read(tmp_path / "task.yaml") == {"a": 1}
    write(tmp_path, task_yaml="a: 12")
    assert Reader().read(tmp_path / "task.yaml") == {"a": 12}


@pytest.mark.parametrize("value", ["[" * 500 + "]" * 500, "{a: " * 500 + "1" + "}" * 500, "&a [*a]"])
def test_what_is_nested_without_end_is_refused(tmp_path, value):
    write(tmp_path, task_yaml=f"doc_to_text: {value}")
    with pytest.raises(ConfigError, match=r"task\.yaml: its lists and mappings are nested too deeply"):
        Reader().read(tmp_path / "task.yaml")
    write(tmp_path, fine_yaml=f"doc_to_text: {'[' * 50}{']' * 50}\nx: &a [1]\ny: [*a, *a]")
    assert Reader().read(tmp_path / "fine.yaml")["y"] == [[1], [1]]


def test_anchors_that_stand_for_more_than_any_definition_holds_are_refused(tmp_path):
    tens = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 7)]
    write(tmp_path, task_yaml="\n".join(["task: x", "a0: &a0 [x]", *tens]))
    with pytest.raises(ConfigError, match=r"task\.yaml: its anchors repeat more than 100000 values"):
        Reader().read(tmp_path / "task.yaml")
    write(tmp_path, fewer_yaml="\n".join(["task: x", "a0: &a0 [x]", *tens[:4]]))  # some 20,000
    assert len(Reader().read(tmp_path / "fewer.yaml")["a4"]) == 10
