"""Files for ``vllm run-batch``, against a command of the tests' own that reads and writes them as vLLM's
``entrypoints/openai/run_batch.py`` does."""

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from tasks.models.config import ModelConfig, RunLimits
from tasks.models.connection import probe
from tasks.models.errors import ModelError
from tasks.models.jobs import close_jobs, look_at_jobs, send_jobs
from tests.tasks.models.batch_servers import prompt_of, said
from tests.tasks.models.test_batches import kept, rows

NOWHERE = "http://127.0.0.1:9/v1"
Outcome = Callable[[Any], tuple[int, Any]]


def model(folder: Path, **config: Any) -> ModelConfig:
    batch = {"files": str(folder), **config.pop("batch", {})}
    told = {"model": "org/a model", "base_url": NOWHERE, "batch": batch, "max_retries": 0, **config}
    return ModelConfig.model_validate({"name": "m", "type": "openai", "config": told})


def answered(body: Any) -> tuple[int, Any]:
    prompt = prompt_of("openai", body)
    return 200, said("openai", f"{len(prompt)} {prompt.split()[-1]}")


def run_batch(command: str, outcome: Outcome = answered, lines: int | None = None) -> list[Any]:
    """What ``vllm run-batch`` does; ends after some ``lines``. Gives the bodies that it was asked."""
    program, verb, _i, asked, _o, results, _model, name = shlex.split(command)
    assert (program, verb, _i, _o, _model) == ("vllm", "run-batch", "-i", "-o", "--model")
    bodies = []
    with Path(results).open("wb") as file:
        for line in Path(asked).read_bytes().splitlines()[:lines]:
            request = orjson.loads(line)
            assert (request["method"], request["url"]) == ("POST", "/v1/chat/completions")
            assert request["body"]["model"] == name
            bodies.append(request["body"])
            status, body = outcome(request["body"])
            good = status == 200
            row = {
                "id": "vllm-1",
                "custom_id": request["custom_id"],
                "response": {
                    "status_code": status,
                    "request_id": "vllm-batch-1",
                    "body": body if good else None,
                },
                "error": None if good else body,
            }
            file.write(orjson.dumps(row) + b"\n")
    return bodies


def told(found: Any) -> str:
    (command,) = found.commands
    return str(command)


def taken(bench: Any, asked: ModelConfig, count: int, found: Any, **fields: Any) -> Any:
    return bench.ask(asked, rows(count), batches=found.names, left_out=found.left_out, **fields)


def test_a_run_writes_a_file_and_says_the_command_and_the_next_reads_the_results(bench: Any, tmp_path: Path):
    folder = tmp_path / "a folder"
    asked = model(folder)
    found = send_jobs(asked, rows(5), bench.answers, bench.options())
    command = told(found)
    assert found.open == 1
    assert shlex.split(command)[3] == str(next(folder.iterdir()))
    first = taken(bench, asked, 5, look(bench, asked, found))
    reason = f"not asked yet: run `{command}`, then run this again"
    assert first.column("error") == [reason] * 5
    assert first.tally.attempts == 0
    assert len(run_batch(command)) == 5
    again = send_jobs(asked, rows(5), bench.answers, bench.options())
    assert (again.open, again.done, again.commands) == (0, 5, ())
    second = taken(bench, asked, 5, again)
    assert second.column("response") == ["18 1?"] * 5
    assert second.tally.batched == second.tally.sent == 5
    close_jobs(asked, again.names, bench.answers, bench.options())
    assert not kept(bench)
    # The keys are those of single requests.
    single = ModelConfig.model_validate(
        {"name": "m", "config": {"model": "org/a model", "base_url": NOWHERE}, "type": "openai"}
    )
    assert bench.ask(single, rows(5)).tally.sent == 0


def look(bench: Any, asked: ModelConfig, found: Any) -> Any:
    """The last look, after the time to wait."""
    while found.open:
        found = look_at_jobs(asked, found.names, bench.answers, bench.options())
    return found


def test_a_file_that_the_command_still_writes_is_not_read(bench: Any, tmp_path: Path):
    asked = model(tmp_path / "jobs")
    command = told(send_jobs(asked, rows(5), bench.answers, bench.options()))
    run_batch(command, lines=4)
    found = look(bench, asked, send_jobs(asked, rows(5), bench.answers, bench.options()))
    assert (told(found), found.done) == (command, 4)
    assert taken(bench, asked, 5, found).tally.batched == 0
    run_batch(command)
    found = send_jobs(asked, rows(5), bench.answers, bench.options())
    assert taken(bench, asked, 5, found).tally.batched == 5


def test_what_the_command_gave_no_answer_goes_into_another_file(bench: Any, tmp_path: Path):
    asked = model(tmp_path / "jobs")
    refusal = {"object": "error", "message": "too long", "type": "BadRequestError", "code": 400}

    def outcome(body: Any) -> tuple[int, Any]:
        return (400, refusal) if "3 + 1" in str(body) else answered(body)

    run_batch(told(send_jobs(asked, rows(5), bench.answers, bench.options())), outcome)
    found = send_jobs(asked, rows(5), bench.answers, bench.options())
    outcome_ = taken(bench, asked, 5, found)
    assert outcome_.column("status") == ["ok", "ok", "ok", "infra_error", "ok"]
    assert outcome_.rows[3]["error"].startswith("not asked: the batch gave no answer")
    close_jobs(asked, found.names, bench.answers, bench.options())
    again = send_jobs(asked, rows(5), bench.answers, bench.options())
    assert len(run_batch(told(again))) == 1


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_kill_while_a_file_is_written_leaves_one_file(
    moment: str, bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Killed(BaseException):
        pass

    replace = os.replace

    def ends(source: Any, target: Any) -> None:
        if str(target).startswith(str(tmp_path / "jobs")):
            if moment == "after":
                replace(source, target)
            raise Killed
        replace(source, target)

    asked = model(tmp_path / "jobs")
    monkeypatch.setattr(os, "replace", ends)
    with pytest.raises(Killed):
        send_jobs(asked, rows(5), bench.answers, bench.options())
    monkeypatch.setattr(os, "replace", replace)
    found = send_jobs(asked, rows(5), bench.answers, bench.options())
    assert len(list((tmp_path / "jobs").glob("*.jsonl"))) == 1
    run_batch(told(found))
    found = send_jobs(asked, rows(5), bench.answers, bench.options())
    assert taken(bench, asked, 5, found).tally.batched == 5


def test_a_file_that_is_gone_is_written_again(bench: Any, tmp_path: Path):
    asked = model(tmp_path / "jobs")
    first = send_jobs(asked, rows(5), bench.answers, bench.options())
    for file in (tmp_path / "jobs").iterdir():
        file.unlink()
    found = send_jobs(asked, rows(5), bench.answers, bench.options())
    assert told(found) != told(first)
    assert len(run_batch(told(found))) == 5


def test_a_line_that_is_no_row_is_named(bench: Any, tmp_path: Path):
    asked = model(tmp_path / "jobs")
    command = told(send_jobs(asked, rows(3), bench.answers, bench.options()))
    run_batch(command, lines=2)
    results = Path(shlex.split(command)[5])
    results.write_bytes(results.read_bytes() + b"Killed\n")
    with pytest.raises(ModelError, match=r"results\.jsonl: line 3: .* is not JSON .*; remove the file"):
        send_jobs(asked, rows(3), bench.answers, bench.options())
    run_batch(command)
    found = send_jobs(asked, rows(3), bench.answers, bench.options())
    assert taken(bench, asked, 3, found).tally.batched == 3


def test_limits_bound_a_file_too(bench: Any, tmp_path: Path):
    limited = {"limits": RunLimits(max_tokens=600), "sampling": {"max_tokens": 100}, "account": "files"}
    found = send_jobs(model(tmp_path / "jobs"), rows(10), bench.answers, bench.options(**limited))
    assert 3 <= len(run_batch(told(found))) <= 5
    assert found.left_out == "not asked: limits.max_tokens of 600 allows no more in a batch"


def test_nothing_is_contacted_before_a_file_is_written(tmp_path: Path):
    found = probe(model(tmp_path / "jobs"))
    assert (found.base_url, found.model) == (None, "org/a model")
    with pytest.raises(ModelError, match=r"config\.batch\.files: can't write .*taken"):
        send_to_a_file(tmp_path)


def send_to_a_file(tmp_path: Path) -> None:
    """The folder's name is that of a file."""
    from tests.tasks.models.conftest import Bench

    (tmp_path / "taken").write_text("")
    bench = Bench(tmp_path)
    send_jobs(model(tmp_path / "taken"), rows(2), bench.answers, bench.options())


def test_what_run_batch_cannot_take_is_refused_when_the_config_is_read(tmp_path: Path):
    with pytest.raises(ValueError, match="vllm run-batch takes chats alone; set api: chat"):
        model(tmp_path, api="completions")
    config = {"model": "m", "batch": {"files": str(tmp_path)}}
    with pytest.raises(ValueError, match="files"):
        ModelConfig.model_validate({"name": "m", "type": "anthropic", "config": config})
