"""Folders of weights, from the config to numbers: servers start only where an answer is missing, in turn."""

import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.config.load import load_config
from flows.config.models import with_checkpoints
from metrics.errors import ConfigError
from tasks.serving import launch

FAKE = Path(__file__).resolve().parents[1] / "tasks" / "serving" / "fake_server.py"
STEPS = (100, 200, 300, 900, 1000)


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = tmp_path / "places"
    places.mkdir()
    monkeypatch.setattr(launch, "locks_folder", lambda: places)


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A config with five checkpoints, of which the later ones know more answers."""
    for number, step in enumerate(STEPS):
        folder = tmp_path / "runs" / f"step-{step}"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"weights %d" % step)
        (folder / "answer.txt").write_text(str(number))
    items = [{"id": str(n), "question": f"{n}?", "answer": str(n % 5)} for n in range(10)]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    return written(tmp_path)


def written(folder: Path, *behaviour: str, **model: Any) -> Path:
    command = [sys.executable, str(FAKE), "--path", "{path}", "--port", "{port}"]
    command += ["--events", str(folder / "events"), *behaviour]
    entry = {
        "name": "sft",
        "checkpoints": "runs/step-*",
        "serve": {"command": command, "gpus": 0, "start_timeout": "60s"},
        "config": {"max_retries": 3, "timeout": 20},
        **model,
    }
    config = {
        "name": "sums",
        "dataset": "items.jsonl",
        "prompt_template": "{{question}}",
        "target": "{{answer}}",
        "models": [entry],
        "metric_list": ["exact_match"],
    }
    (folder / "sums.yaml").write_text(yaml.safe_dump(config))
    return folder / "sums.yaml"


def events(folder: Path, word: str) -> list[str]:
    file = folder / "events"
    lines = file.read_text().splitlines() if file.exists() else []
    return [line.rpartition(" ")[2] for line in lines if line.startswith(f"{word} ")]


def test_a_pattern_becomes_a_model_for_each_folder_in_the_order_of_steps(sweep: Path) -> None:
    config = with_checkpoints(load_config(sweep))
    assert [model.name for model in config.models] == [f"sft-step-{step}" for step in STEPS]
    assert [model.metadata["step"] for model in config.models] == list(STEPS)
    again = type(config).model_validate(config.model_dump(mode="json"))
    assert [model.path for model in again.models] == [model.path for model in config.models]


def test_each_checkpoint_has_the_price_of_its_entry(sweep: Path) -> None:
    """Its costs were unknown, and a limit of costs was never reached."""
    one = f"sft-step-{STEPS[1]}"
    paid = {"sft": {"prompt": 1, "completion": 2}, one: {"prompt": 3}}
    keys = [f"prices={json.dumps({'currency': 'USD', **paid})}", "limits.max_cost=1"]
    config = with_checkpoints(load_config(sweep, keys))
    prices = {model.name: config.prices.of(model.name) for model in config.models}
    own = {name: price and (price.prompt, price.completion) for name, price in prices.items()}
    assert own.pop(one) == (3, 0)
    assert set(own.values()) == {(1, 2)}
    assert config.prices.currency == "USD"


def test_a_pattern_that_matches_nothing_is_refused(sweep: Path) -> None:
    config = load_config(sweep, ["models.0.checkpoints=nowhere/step-*"])
    with pytest.raises(ConfigError, match=r"nothing matches nowhere/step-\* in"):
        with_checkpoints(config)


def test_a_checkpoint_without_whole_weights_is_left_out_and_told(
    sweep: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "runs" / "step-950").mkdir()
    (tmp_path / "runs" / "step-200" / "model.safetensors").write_bytes(b"")
    config = with_checkpoints(load_config(sweep))
    assert [model.metadata["step"] for model in config.models] == [100, 300, 900, 1000]
    left_out = [text for text in caplog.messages if "a checkpoint is left out" in text]
    assert ["step-200: model.safetensors ends before" in text for text in left_out] == [True, False]
    assert "step-950 holds no weights" in left_out[1]
    for step in STEPS:
        (tmp_path / "runs" / f"step-{step}" / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"step-100: model\.safetensors ends before its weights do; "):
        with_checkpoints(load_config(sweep))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("models.0.config.base_url=http://localhost:1/v1", "leave config.base_url out"),
        ("models.0.serve=vlm", "server 'vlm' is not known; did you mean 'vllm'"),
        ("models.0.serve={command: [serve]}", r"expected \{port\} in the command"),
        ("models.0.path=runs", "names path and checkpoints"),
        ("models.0.type=demo", "has no weights that are served"),
    ],
)
def test_what_can_not_be_served_is_refused_with_its_key(sweep: Path, override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(sweep, [override])


@pytest.mark.services
def test_a_sweep_takes_servers_in_turn_and_a_second_one_takes_none(
    sweep: Path, tmp_path: Path, evaluate: Callable[..., Any]
) -> None:
    planned = evaluate(sweep, "--dry-run", "--json")
    assert [(entry["model"], entry["requests"]) for entry in planned.document["servers"]] == [
        (f"sft-step-{step}", 10) for step in STEPS
    ]
    assert events(tmp_path, "start") == []

    ran = evaluate(sweep, "--json")
    assert ran.code == 0, ran.err
    assert events(tmp_path, "start") == [f"step-{step}" for step in STEPS]
    assert events(tmp_path, "beside") == []  # no server began while another one lived
    assert [ran.value("exact_match,none", f"sft-step-{step}") for step in STEPS] == [0.2] * 5
    logs = sorted(file.name for file in (tmp_path / "out" / "servers").iterdir())
    assert len(logs) == 5
    assert "the last words" in (tmp_path / "out" / "servers" / logs[0]).read_text()
    report = (tmp_path / "out" / "report.html").read_text()
    assert 'id="checkpoints"' in report
    assert "exact_match,none: best at step 100 (0.2000)" in report

    again = evaluate(sweep, "--json")
    assert again.code == 0
    assert len(events(tmp_path, "start")) == 5
    assert again.document["requests"]["sent"] == 0
    assert sum(entry["computed"] for entry in again.document["steps"].values()) == 0

    (tmp_path / "runs" / "step-300" / "model.safetensors").write_bytes(b"other weights")
    (tmp_path / "runs" / "step-900").rename(tmp_path / "runs" / "step-901")  # the same weights elsewhere
    changed = evaluate(sweep, "--json")
    assert changed.code == 0
    assert events(tmp_path, "start")[5:] == ["step-300"]
    assert changed.document["requests"]["sent"] == 10


@pytest.mark.services
def test_a_changed_adapter_never_gives_an_old_answer(
    sweep: Path, tmp_path: Path, evaluate: Callable[..., Any]
) -> None:
    adapter = tmp_path / "lora"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "gone"}')
    command = [sys.executable, str(FAKE), "--path", "{path}", "--port", "{port}", "--adapter", "{adapter}"]
    serve = {"command": [*command, "--events", str(tmp_path / "events")], "gpus": 0, "start_timeout": "60s"}
    written(tmp_path, checkpoints=None, path="runs/step-100", peft="lora", serve=serve)

    def ran(weights: bytes, answer: str) -> tuple[float, int]:
        (adapter / "adapter_model.safetensors").write_bytes(weights)
        (adapter / "answer.txt").write_text(answer)
        found = evaluate(sweep, "--json")
        assert found.code == 0, found.err
        return found.value("exact_match,none", "sft"), found.document["requests"]["sent"]

    assert ran(b"one", "1") == (0.2, 10)
    assert ran(b"other", "no number") == (0.0, 10)
    assert ran(b"one", "1") == (0.2, 0)
    assert len(events(tmp_path, "start")) == 2


def test_a_checkpoint_that_can_not_be_loaded_takes_no_other_with_it(
    sweep: Path, tmp_path: Path, evaluate: Callable[..., Any]
) -> None:
    for step in (400, 500, 600):
        shutil.copytree(tmp_path / "runs" / "step-300", tmp_path / "runs" / f"step-{step}")
        (tmp_path / "runs" / f"step-{step}" / "model.safetensors").write_bytes(b"weights %d" % step)
    (tmp_path / "runs" / "step-200" / "broken.txt").write_text("")
    (tmp_path / "runs" / "step-2000").mkdir()  # being written
    written(tmp_path, "--die", "4")
    ran = evaluate(sweep, "--json")
    assert ran.code == 1
    rows = {row["model_name"]: row for row in ran.document["results"]}
    assert rows["sft-step-200"]["status"] == "failed"
    assert "CUDA out of memory" in rows["sft-step-200"]["error"]
    assert "the last words" in rows["sft-step-200"]["error"]
    for step in (100, 300, 400, 500, 600, 900, 1000):
        assert rows[f"sft-step-{step}"]["value"] == 0.2
    assert "sft-step-2000" not in rows
    report = (tmp_path / "out" / "report.html").read_text()
    assert 'id="checkpoints"' in report, "the curve of the seven others"
    assert "exact_match,none: best at step 100 (0.2000)" in report
    assert events(tmp_path, "start").count("step-100") == 2  # it died, and was started again


@contextmanager
def once(folder: Path, word: str, number: int, change: Callable[[], Any]) -> Iterator[list[str]]:
    """A block in which ``change`` is made while the server that noted ``word`` the nth time waits for it; the
    server's options for that."""
    go, over = folder / "go", threading.Event()

    def watch() -> None:
        while len(events(folder, word)) < number and not over.is_set():
            time.sleep(0.02)
        change()
        go.write_text("")

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield ["--hold", word, str(number), str(go)]
    finally:
        over.set()
        watching.join(60)
        go.unlink()
        (folder / "events").unlink(missing_ok=True)


def new_weights(folder: Path, content: bytes = b"other weights") -> Callable[[], Any]:
    return lambda: (folder / "model.safetensors").write_bytes(content)


@pytest.mark.parametrize(
    ("word", "behaviour"), [("start", []), ("asked", []), ("asked", ["--die", "4"])],
    ids=["loaded", "asked", "started again"],
)  # fmt: skip
def test_weights_that_are_replaced_give_no_answer_under_either_digest(
    sweep: Path, tmp_path: Path, evaluate: Callable[..., Any], word: str, behaviour: list[str]
) -> None:
    latest = tmp_path / "runs" / "step-100"
    told = {"checkpoints": None, "path": "runs/step-100"}
    with once(tmp_path, word, 1, new_weights(latest)) as held:
        written(tmp_path, *held, **told)
        ran = evaluate(sweep, "--json")
    assert ran.code == 1
    (row,) = ran.document["results"]
    assert row["status"] == "failed"
    assert "were replaced after the run had begun" in row["error"]
    # The same server as before, for the key's sake, which by now has nothing to wait for.
    (tmp_path / "go").write_text("")
    for content in (b"other weights", b"weights 100"):
        new_weights(latest, content)()
        again = evaluate(sweep, "--json")
        assert again.code == 0, again.err
        assert again.document["requests"]["sent"] == 10


@pytest.mark.parametrize(("word", "number"), [("start", 2), ("asked", 1)], ids=["asked before", "served"])
def test_a_checkpoint_that_is_removed_once_it_is_loaded_fails_nothing(
    sweep: Path, tmp_path: Path, evaluate: Callable[..., Any], word: str, number: int
) -> None:
    removed = tmp_path / "runs" / "step-100"
    with once(tmp_path, word, number, lambda: removed.rename(tmp_path / "moved")) as held:
        written(tmp_path, *held, checkpoints="runs/step-[123]00")
        ran = evaluate(sweep, "--json")
    assert ran.code == 0, ran.err
    values = [ran.value("exact_match,none", f"sft-step-{step}") for step in (200, 300)]
    assert values == [0.2, 0.2]


def test_a_checkpoint_that_is_removed_before_its_server_starts_fails_alone(
    sweep: Path, tmp_path: Path, evaluate: Callable[..., Any]
) -> None:
    removed = tmp_path / "runs" / "step-300"
    with once(tmp_path, "start", 1, lambda: removed.rename(tmp_path / "moved")) as held:
        written(tmp_path, *held, checkpoints="runs/step-[123]00")
        ran = evaluate(sweep, "--json")
    assert ran.code == 1
    found = {row["model_name"]: row["status"] for row in ran.document["results"]}
    assert found == {"sft-step-100": "ok", "sft-step-200": "ok", "sft-step-300": "failed"}


@pytest.mark.services
def test_servers_run_beside_the_run_where_dask_computes(
    sweep: Path, evaluate_process: Callable[..., Any], tmp_path: Path
) -> None:
    ran = evaluate_process(sweep, "--task-runner", "dask", "--json", timeout=400)
    assert ran.code == 0, ran.err
    assert [ran.value("exact_match,none", f"sft-step-{step}") for step in STEPS] == [0.2] * 5
    assert len(events(tmp_path, "start")) == len(STEPS)
