"""What --tasks selects: benchmarks, groups, tags, globs; members with overrides; refusals."""

from pathlib import Path

import pytest

from metrics.errors import ConfigError
from tasks.benchmarks.lm_eval import DefinitionIndex, select, select_file

BASE = "dataset_path: json\ntest_split: test\ndoc_to_text: q\ndoc_to_target: a\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, tags in (("red_one", "[warm, all]"), ("red_two", "warm"), ("blue", "all")):
        (tmp_path / f"{name}.yaml").write_text(f"task: {name}\ntag: {tags}\n{BASE}")
    (tmp_path / "_base_yaml").write_text("task: never\n" + BASE)
    return tmp_path


def names(folder: Path, *patterns: str) -> list[str]:
    return list(select(patterns, [folder]).benchmarks)


def test_globs_select_in_the_order_of_the_patterns(folder):
    assert names(folder, "blue", "red_*") == ["blue", "red_one", "red_two"]


def test_a_tag_stands_for_its_benchmarks(folder):
    assert names(folder, "all") == ["blue", "red_one"]


def test_files_without_the_yaml_suffix_are_not_definitions(folder):
    assert "never" not in names(folder, "*")


def test_an_unknown_name_is_refused_with_the_nearest(folder):
    with pytest.raises(ConfigError, match=r"'red_on' among 5 known; did you mean 'red_one'\?"):
        select(["red_on"], [folder])


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"--include-path .*nowhere is not a folder"):
        select(["x"], [tmp_path / "nowhere"])


def test_group_members_take_the_groups_settings_and_their_own_win(folder):
    (folder / "g.yaml").write_text(
        "group: g\nnum_fewshot: 2\nrepeats: 3\n"
        "task:\n  - red_one\n  - {task: blue, num_fewshot: 5, task_alias: Blue}\n"
    )
    selection = select(["g"], [folder])
    assert [(d.config["num_fewshot"], d.config["repeats"]) for d in selection.benchmarks.values()] == [
        (2, 3),
        (5, 3),
    ]
    assert selection.groups["g"].members == ("red_one", "blue")
    assert selection.benchmarks["blue"].config["task_alias"] == "Blue"


def test_members_may_be_tags_and_groups_and_keep_their_names(folder):
    (folder / "inner.yaml").write_text("group: inner\ntask: [blue]\n")
    (folder / "outer.yaml").write_text("group: outer\ntask: [warm, {group: inner, num_fewshot: 1}]\n")
    selection = select(["outer"], [folder])
    assert list(selection.benchmarks) == ["red_one", "red_two", "blue"]
    assert selection.groups["outer"].members == ("red_one", "red_two", "inner")
    assert selection.benchmarks["blue"].config["num_fewshot"] == 1
    assert list(selection.groups) == ["outer", "inner"]


def test_inline_groups_and_benchmarks_bear_the_groups_name(folder):
    (folder / "g.yaml").write_text(
        "group: g\ntask:\n  - group: part\n    task: [blue]\n"
        "  - {task: made, include: _base_yaml, num_fewshot: 1}\n"
    )
    selection = select(["g"], [folder])
    assert selection.groups["g"].members == ("g::part", "g::made")
    assert selection.benchmarks["g::made"].config["dataset_path"] == "json"


def test_an_unknown_member_is_refused_with_the_group(folder):
    (folder / "g.yaml").write_text("group: g\ntask: [green]\n")
    with pytest.raises(ConfigError, match=r"g\.yaml: member 'green' of group 'g' is not known"):
        select(["g"], [folder])


def test_a_group_that_contains_itself_is_refused(folder):
    (folder / "a.yaml").write_text("group: a\ntask: [b]\n")
    (folder / "b.yaml").write_text("group: b\ntask: [a]\n")
    with pytest.raises(ConfigError, match="contains itself: a → b → a"):
        select(["a"], [folder])


def test_one_benchmark_with_two_settings_is_refused(folder):
    (folder / "g.yaml").write_text("group: g\ntask: [blue, {task: blue, num_fewshot: 1}]\n")
    with pytest.raises(ConfigError, match="'blue' is asked for twice with different settings"):
        select(["g"], [folder])


def test_the_same_benchmark_of_two_groups_is_run_once(folder):
    for name in "gh":
        (folder / f"{name}.yaml").write_text(f"group: {name}\ntask: [blue]\n")
    assert names(folder, "g", "h") == ["blue"]


def test_members_are_found_in_the_checkout_that_the_group_belongs_to(tmp_path):
    tree = tmp_path / "tasks"
    (tree / "one").mkdir(parents=True)
    (tree / "two").mkdir()
    (tree / "one" / "x.yaml").write_text("task: x\n" + BASE)
    (tree / "two" / "g.yaml").write_text("group: g\ntask: [x]\n")
    assert list(select_file(tree / "two" / "g.yaml", DefinitionIndex()).benchmarks) == ["x"]


def test_a_file_with_a_task_list_holds_several_benchmarks(tmp_path):
    path = tmp_path / "many.yaml"
    path.write_text("task_list: [{task: m1, dataset_name: a}, {task: m2, num_fewshot: 1}]\n" + BASE)
    found = select_file(path, DefinitionIndex()).benchmarks
    assert found["m1"].config["dataset_name"] == "a"
    assert found["m2"].config["num_fewshot"] == 1


def test_a_base_for_other_files_is_refused_with_the_reason(tmp_path):
    (tmp_path / "base.yaml").write_text(BASE)
    with pytest.raises(ConfigError, match="has neither 'task' nor 'group': it's a base"):
        select_file(tmp_path / "base.yaml", DefinitionIndex())


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{metric: acc, aggregation: median}", "over benchmarks there is only the mean"),
        ("{metric: acc, weight: 1}", "aggregate_metric_list has no key 'weight'"),
        ("acc", "is a mapping with 'metric', got 'acc'"),
    ],
)
def test_an_aggregate_that_groups_do_not_have_is_refused(folder, entry, message):
    (folder / "g.yaml").write_text(f"group: g\ntask: [blue]\naggregate_metric_list: [{entry}]\n")
    with pytest.raises(ConfigError, match=message):
        select(["g"], [folder])


def test_a_later_folder_wins_and_says_so(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / "blue.yaml").write_text("task: blue\nnum_fewshot: 7\n" + BASE)
    selection = select(["blue"], [folder, other])
    assert selection.benchmarks["blue"].config["num_fewshot"] == 7
    assert any("replaces" in warning for warning in selection.warnings)
