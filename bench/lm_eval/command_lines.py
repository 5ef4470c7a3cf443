"""Command lines of lm-evaluation-harness's documentation: by the harness, by this project, and recorded.

    python -m bench.lm_eval.command_lines [--peer PYTHON] [--record] [--only PART]

``PYTHON`` has ``lm-eval[api]`` and ``transformers``, else that of ``NIGHTJAR_BENCH_PEER``. Each line of
``tests/fixtures/lm_eval_commands/commands.yaml`` runs there against the embedded server. ``--record`` writes
what it gave into ``expected.json`` beside it, which a test compares this program with. Without it, this
program runs the line too, and both are compared as in the test. Exits 1 where anything differs.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from bench.lm_eval.peer import ABSENT, peer_python
from bench.lm_eval.runs import OFFLINE, PROJECT, home
from bench.lm_eval.served import MAX_LENGTH, byte_tokenizer
from tasks.models.demo.server import serve

FIXTURE = PROJECT / "tests" / "fixtures" / "lm_eval_commands"
EXPECTED = FIXTURE / "expected.json"
DIGITS = 12
"""Letters of a hash that are kept: a prompt that differs has another with all likelihood."""
OF_SAMPLE = ("doc_id", "filter", "doc_hash", "prompt_hash", "target_hash")
LOGGED = ("doc", "target", "arguments", "resps", "filtered_resps", "metrics")
TOLERANCE = 1e-6


def command_lines() -> list[dict[str, str]]:
    """Each with its page and its words."""
    lines: list[dict[str, str]] = yaml.safe_load((FIXTURE / "commands.yaml").read_text())
    return lines


def words(line: str, base_url: str, tokenizer: Path, out: Path) -> list[str]:
    """The words of a line, its model and folders in place; results and samples are written to ``out``."""
    completions = f"model=demo,base_url={base_url}/completions,tokenizer={tokenizer},max_length={MAX_LENGTH}"
    chat = f"model=demo,base_url={base_url}/chat/completions"
    places = {"completions": completions, "chat": chat, "tasks": str(FIXTURE / "tasks"), "here": str(FIXTURE)}
    places["out"] = str(out)
    found = []
    for word in shlex.split(line):
        for name, place in places.items():
            word = word.replace(f"{{{name}}}", place)
        found.append(word)
    if "--output_path" in found:
        place = found.index("--output_path") + 1
        found[place] = str(out / found[place])
    else:
        found += ["--output_path", str(out / "results")]
    logs = [] if {"--log_samples", "--predict_only"} & set(found) else ["--log_samples"]
    return [*found, *logs, "--include_path", str(FIXTURE / "tasks")]


def outcome(out: Path) -> dict[str, Any]:
    """What the files below ``out`` say: where they are, the keys and numbers of the results, and of each
    sample the hashes of its prompt, document and target, what was asked with, its answers and its values.
    """
    (results,) = (path for path in out.rglob("*.json") if "results" in json.loads(path.read_text()))
    document = json.loads(results.read_text())
    samples = {}
    for path in sorted(out.rglob("samples_*.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        samples[path.name.removeprefix("samples_").rpartition("_")[0]] = [*map(_sample, rows)]
    return {
        "file": f"{results.relative_to(out).parent}/{results.name.rpartition('_')[0]}",
        "keys": sorted(document),
        "config": {key: value for key, value in document["config"].items() if key not in OF_MACHINE},
        "results": {name: _numbers(entry) for name, entry in document["results"].items()},
        **{key: document.get(key) for key in SECTIONS},
        "samples": samples,
    }


OF_MACHINE = ("model_args", "batch_size", "batch_sizes", "use_cache", "bootstrap_iters", "device")
SECTIONS = (
    "group_subtasks", "versions", "n-shot", "higher_is_better", "n-samples", "model_source", "model_name",
    "model_name_sanitized", "system_instruction", "system_instruction_sha", "fewshot_as_multiturn",
    "task_hashes",
)  # fmt: skip


def _numbers(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if "_stderr" not in key}


def _sample(row: Mapping[str, Any]) -> list[Any]:
    about = [str(row[key])[:DIGITS] if key.endswith("_hash") else row[key] for key in OF_SAMPLE]
    asked = row["arguments"]["gen_args_0"].get("arg_1")
    return [*about, asked if isinstance(asked, dict) else None, _answers(row), {
        key: value for key, value in row.items() if key not in (*OF_SAMPLE, *LOGGED)
    }]  # fmt: skip


def _answers(row: Mapping[str, Any]) -> Any:
    """What was left of the answers; log-likelihoods as numbers."""
    return [
        [float(one[0]), one[1]] if isinstance(one, list) and len(one) == 2 else one
        for one in row["filtered_resps"]
    ]


def differences(theirs: Any, ours: Any, at: str = "") -> Iterator[str]:
    """Where two outcomes differ, numbers by more than they may."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in {**theirs, **ours}:
            if key not in theirs or key not in ours:
                yield f"{at}.{key} is only {'there' if key in theirs else 'here'}"
            else:
                yield from differences(theirs[key], ours[key], f"{at}.{key}")
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for number, (one, other) in enumerate(zip(theirs, ours, strict=True)):
            yield from differences(one, other, f"{at}.{number}")
    elif isinstance(theirs, float) and isinstance(ours, int | float):
        if abs(theirs - ours) > TOLERANCE * max(1.0, abs(theirs)):
            yield f"{at}: {theirs} there, {ours} here"
    elif theirs != ours:
        yield f"{at}: {theirs!r:.300} there, {ours!r:.300} here"


def by_the_harness(peer: str, lines: list[list[str]], folder: Path) -> list[str | None]:
    """Its runs; what went wrong with each, if anything did."""
    environment = {**os.environ, **OFFLINE, "HF_HOME": str(folder / "hf"), "OPENAI_API_KEY": ""}
    (folder / "lines.json").write_text(json.dumps(lines))
    command = [peer, str(Path(__file__).with_name("peer_commands.py")), str(folder / "lines.json")]
    run = subprocess.run(
        command, cwd=FIXTURE / "tasks", env=environment, capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise SystemExit(f"the peer failed:\n{run.stderr[-3000:]}")
    failed: list[str | None] = json.loads(run.stdout.splitlines()[-1])
    return failed


def by_this_project(arguments: list[str], environment: Mapping[str, str]) -> str | None:
    """The same by ``flows.lm_eval``."""
    command = [sys.executable, "-m", "flows.lm_eval", *arguments]
    run = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    return run.stderr[-3000:] if run.returncode else None


def main() -> int:
    """Runs the lines by both and compares, or by the harness and records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="python with lm-eval[api] and transformers")
    parser.add_argument("--record", action="store_true", help="write what the harness gave")
    parser.add_argument("--only", default="", help="lines that hold this text, or whose page does")
    options = parser.parse_args()
    peer = peer_python(options.peer, "transformers")
    if peer is None:
        print(f"skipped: {ABSENT}")
        return 0
    lines = [one["run"] for one in command_lines() if options.only in one["run"] + one["page"]]
    recorded: dict[str, Any] = json.loads(EXPECTED.read_text()) if EXPECTED.is_file() else {}
    wrong = 0
    with tempfile.TemporaryDirectory() as place, serve() as server, home(Path(place, "home")) as environment:
        tokenizer = byte_tokenizer(Path(place, "tokenizer"))

        def placed(kind: str) -> list[tuple[Path, list[str]]]:
            folders = [Path(place, f"{number}-{kind}") for number in range(len(lines))]
            return [
                (folder, words(line, server.base_url, tokenizer, folder))
                for folder, line in zip(folders, lines, strict=True)
            ]

        theirs = placed("peer")
        failures = by_the_harness(peer, [given for _, given in theirs], Path(place))
        for line, (there, _), (here, given), failed in zip(
            lines, theirs, placed("own"), failures, strict=True
        ):
            if failed is not None:
                print(f"FAILS THERE {line}\n{failed[-1500:]}")
                wrong += 1
                continue
            expected = json.loads(json.dumps(outcome(there)))
            if options.record:
                recorded[line] = expected
                print(f"recorded {line}")
                continue
            failed = by_this_project(given, environment)
            found = [failed] if failed is not None else [*differences(expected, outcome(here))]
            wrong += bool(found)
            print(f"{'DIFFERS' if found else 'equal'} {line}")
            for said in found[:12]:
                print(f"    {said}")
    if options.record:
        kept = {one["run"]: recorded[one["run"]] for one in command_lines() if one["run"] in recorded}
        EXPECTED.write_text(json.dumps(kept, ensure_ascii=False, indent=None, separators=(",", ":")) + "\n")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
