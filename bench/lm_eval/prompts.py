"""Compares prompts and documents with an installed lm-evaluation-harness, byte for byte.

    python bench/lm_eval/prompts.py [FOLDER] [--peer PYTHON]

FOLDER holds definitions with local data (default: those of the tests). The peer's Python is ``--peer``, else
``NIGHTJAR_BENCH_PEER``, else this one; without lm-eval in it the comparison is skipped, saying so.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "tasks" / "benchmarks" / "lm_eval" / "cases"
sys.path.insert(0, str(ROOT))

from bench.lm_eval.peer import ABSENT, peer_python  # noqa: E402


def of_peer(
    python: str, folder: Path, names: list[str], chat: bool = False, limit: int | None = None
) -> dict[str, Any]:
    """Requests, documents and targets by benchmark, as the harness makes them."""
    flags = ["--chat"] * chat + (["--limit", str(limit)] if limit is not None else [])
    command = [python, str(Path(__file__).with_name("oracle.py")), str(folder), *names, *flags]
    with tempfile.TemporaryDirectory() as cache:
        offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": cache, "LMEVAL_LOG_LEVEL": "ERROR"}
        environment = {**os.environ, **offline}
        run = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    if run.returncode:
        raise SystemExit(f"the peer failed:\n{run.stderr[-3000:]}")
    return json.loads(run.stdout[run.stdout.index("{") :])


def of_ours(folder: Path, names: list[str], chat: bool = False, limit: int | None = None) -> dict[str, Any]:
    """The same, as this program makes them."""
    from tasks.benchmarks.lm_eval import select, translate
    from tasks.benchmarks.lm_eval.benchmark import HarnessBenchmark

    found = {}
    for name, definition in select(names, [folder]).benchmarks.items():
        config = translate(definition)
        harness = {**config["harness"], "apply_chat_template": chat}
        benchmark = HarnessBenchmark(harness, config["base_dir"], name)
        items = list(benchmark.items())[:limit]
        requests = []
        for rendered in benchmark.render("default", items):
            pairs = zip(rendered.prompts, rendered.continuations, strict=True)
            asked = [*pairs, *(("", text) for text in rendered.unconditional)]
            for prompt, continuation in asked:
                args = {"generate": [prompt], "rolling": [continuation]}.get(
                    rendered.kind, [prompt, continuation]
                )
                if chat:
                    args = [json.dumps(json.loads(args[0]), ensure_ascii=False)]
                requests.append({"doc": rendered.item.doc_id, "args": args})
        found[name] = {"docs": [dict(item.data) for item in items], "requests": requests}
    return found


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """One sentence a benchmark for the first request that differs, and for the first document."""
    found = []
    for name, peer in theirs.items():
        own = ours[name]["requests"]
        expected = [{"doc": one["doc"], "args": one["args"]} for one in peer["requests"]]
        if len(own) != len(expected):
            found.append(f"{name}: {len(own)} requests, the harness makes {len(expected)}")
        pairs = ((mine, other) for mine, other in zip(own, expected, strict=False) if mine != other)
        found.extend(
            f"{name}: request differs\n  ours   {mine}\n  theirs {other}" for mine, other in list(pairs)[:1]
        )
        docs = zip(ours[name]["docs"], peer["docs"], strict=True)
        found.extend(
            f"{name}: document differs\n  ours   {mine}\n  theirs {other}"
            for mine, other in list(docs)
            if mine != other
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=CASES)
    parser.add_argument("--peer")
    options = parser.parse_args()
    python = peer_python(options.peer)
    if python is None:
        print(f"skipped: {ABSENT}")
        return
    from tasks.benchmarks.lm_eval import build_index

    index = build_index([options.folder])
    names = sorted(name for name, entry in index.entries.items() if entry.kind == "benchmark")
    texts = [
        name
        for name in names
        if index.entries[name].config.get("output_type", "generate_until") == "generate_until"
    ]
    failed = []
    for chosen, chat, limit in ((names, False, None), (names, False, 3), (texts, True, None)):
        theirs = of_peer(python, options.folder, chosen, chat, limit)
        found = differences(of_ours(options.folder, chosen, chat, limit), theirs)
        count = sum(len(one["requests"]) for one in theirs.values())
        print(
            f"{len(chosen)} benchmarks, {count} requests{', chat' * chat}{f', limit {limit}' * bool(limit)}: "
            f"{'equal' if not found else f'{len(found)} differ'}"
        )
        failed += found
    print("\n".join(failed))
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
