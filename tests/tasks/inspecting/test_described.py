"""What a task says of itself becomes native keys."""

import json
from pathlib import Path
from typing import Any

import pytest

from metrics.errors import ConfigError
from tasks.inspecting import InspectTask, described, inspect_keys

SAID: dict[str, Any] = {
    "name": "agents",
    "samples": [
        {"id": 1, "input": "2 + 2?", "target": "4", "metadata": {"level": "easy"}},
        {
            "id": "two", "target": ["a", "b"], "choices": ["a", "b"],
            "input": [{"role": "user", "content": "Which?", "id": "made up anew"}],
        },
    ],
    "epochs": 3,
    "reducers": ["mean"],
    "scorers": [
        {"name": "match", "metrics": ["accuracy", "stderr"], "keys": {}},
        {"name": "style", "metrics": [], "keys": {"length": ["mean"], "right": ["accuracy"]}},
        {"name": "rated.by", "metrics": ["mean"], "keys": {"*": ["mean"]}},
    ],
    "files": {"/somewhere/agents.py": "abc"},
    "packages": {"inspect_ai": "0.3.285"},
    "absent": [],
}  # fmt: skip


def keys_of(
    monkeypatch: pytest.MonkeyPatch, folder: Path, task: dict[str, Any] | None = None, **said: Any
) -> dict[str, Any]:
    monkeypatch.setattr(described, "call_inspect", lambda *_: {**SAID, **said})
    given = InspectTask.model_validate({"task": "agents.py", **(task or {})})
    return inspect_keys(given, folder, folder / "imported")


def test_scorers_become_pairs_and_samples_items(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = keys_of(monkeypatch, tmp_path)
    metrics = {entry["alias"]: (entry["field"], entry.get("range")) for entry in keys["metric_list"]}
    assert metrics == {
        "match": ("scores.match", [0, 1]),
        "style/length": ("scores.style/length", None),
        "style/right": ("scores.style/right", [0, 1]),
        "rated_by": ("scores.rated_by", None),
    }
    assert keys["sample_params"] == {"num_samples": 3}
    first, second = map(json.loads, Path(keys["dataset"]).read_text().splitlines())
    assert first == {"id": "1", "input": "2 + 2?", "target": "4", "metadata": {"level": "easy"}}
    assert (second["input"], second["choices"]) == ("user: Which?", ["a", "b"])
    assert "anew" not in json.dumps(second)


def test_keys_of_dictionaries_that_no_metric_names_are_named_by_the_config(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys = keys_of(monkeypatch, tmp_path, {"values": {"rated.by": ["tone", "facts"]}})
    assert keys["inspected"]["pairs"][-2:] == ["rated_by/tone", "rated_by/facts"]
    with pytest.raises(ConfigError, match="'rater' is no scorer of the task; it has match, style, rated"):
        keys_of(monkeypatch, tmp_path, {"values": {"rater": ["tone"]}})


@pytest.mark.parametrize(
    ("reducers", "reduction", "notes"),
    [
        (["mean"], "mean", 0), ([], "mean", 0), (["max"], "max", 0), (["mode"], "mean", 1),
        (["at_least_2"], None, 1), (["mean", "max"], "mean", 1),
    ],
)  # fmt: skip
def test_epochs_are_reduced_as_there_where_that_can_be_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reducers: list[str], reduction: str | None, notes: int
) -> None:
    keys = keys_of(monkeypatch, tmp_path, reducers=reducers)
    assert keys["metric_list"][0].get("reduction") == reduction
    assert len(keys["inspected"]["notes"]) == notes


def test_what_the_task_is_made_of_is_in_the_keys_of_its_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tasks.inspecting import InspectFound

    (tmp_path / "compose.yaml").write_text("a: 1\n")
    task = {"depends_on": ["compose.yaml"]}

    def identity(task: dict[str, Any], **said: Any) -> Any:
        found = InspectFound.model_validate(keys_of(monkeypatch, tmp_path, task, **said)["inspected"])
        return found.identity(InspectTask.model_validate({"task": "agents.py", **task}))

    first = identity(task)
    assert identity(task) == first == identity(task, files={"/elsewhere/agents.py": "abc"})
    others = [
        identity(task, files={"/somewhere/agents.py": "def"}),
        identity(task, packages={"inspect_ai": "0.3.286"}),
        identity({**task, "args": {"count": 2}}),
        identity({**task, "limits": {"message_limit": 2}}),
    ]
    (tmp_path / "compose.yaml").write_text("a: 2\n")
    others.append(identity(task))
    assert all(other != first for other in others)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"samples": []}, "has no samples"),
        ({"scorers": []}, "has no scorer"),
        (
            {"scorers": [{"name": name, "metrics": [], "keys": {}} for name in ("a.b", "a_b")]},
            "two of its scores would be called 'a_b'",
        ),
    ],
)
def test_a_task_that_gives_no_pairs_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        keys_of(monkeypatch, tmp_path, **said)
