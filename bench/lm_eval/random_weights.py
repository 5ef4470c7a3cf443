"""The same YAML against a model with random weights, by lm-evaluation-harness and by this project.

    python -m bench.lm_eval.random_weights [--peer PYTHON] [--only SCENARIO]… [--size N]

``PYTHON`` is an interpreter with ``lm-eval[api]``, ``torch`` and ``transformers`` (the extra ``bench``), else
that of ``NIGHTJAR_BENCH_PEER``, else this one. It also serves the model (``random_server.py``). The
benchmarks are those under ``random``, their data are seeded; some answers are the model's own, so that not
everything is wrong. Further scenarios ask this project alone, on servers that take or give less, for the
answers that the peer got. Exits 1 where a number differs (see ``comparing.py``).
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.lm_eval.comparing import compare, results
from bench.lm_eval.peer import ABSENT, peer_python
from bench.lm_eval.random_data import write_data
from bench.lm_eval.runs import OFFLINE, PROJECT, Asked, by_the_harness, by_this_project, home
from bench.lm_eval.ways import WAYS

BENCHMARKS = Path(__file__).resolve().parent / "random"
CONTEXT, SEED = 384, 11
LIKELIHOODS = ("rw_mc_plain", "rw_mc_glued", "rw_mc_empty_glued", "rw_mc_inputs", "rw_ll", "rw_roll")
GENERATED = ("rw_gen", "rw_gen_filters", "rw_gen_text")
CORE = (*LIKELIHOODS, *GENERATED)
WITH_CONTEXT = ("rw_mc_default_metrics", "rw_mc_gold_list", "rw_ll", "rw_gen")
"""What a server needs no tokenizer for: nothing is asked without a context, no document is cut."""
REFUSED = "no log-probabilities of prompts"


@dataclass(frozen=True)
class Scenario:
    """A server and how both programs ask it. ``peer``: the scenario whose answers by the peer are taken."""

    title: str
    names: Sequence[str]
    tokenizer: str = "bytes"
    ways: Sequence[str] = ()
    peer: str | None = None
    as_text: bool = False
    chat: bool = False
    told: bool = True
    refused: str | None = None


def scenarios(names: Sequence[str]) -> dict[str, Scenario]:
    """All of them; ``names`` are those of every benchmark."""
    generations = [name for name in names if name.startswith("rw_gen")]
    every = [name for name in names if name != "rw_group"]
    by_name = {
        "bytes": Scenario("ids, tokens of bytes", every),
        "words": Scenario("ids, tokens of words, BOS", CORE, "words", ("add_bos",)),
        "pieces": Scenario("ids, pieces of words, a space before every text", CORE, "pieces"),
        "text": Scenario("text alone", CORE[:5] + GENERATED, "bytes", ("text_only",), as_text=True),
        "group": Scenario("a group", ["rw_group"]),
        "chat": Scenario("chat", generations, chat=True),
        "untold": Scenario("no tokenizer", WITH_CONTEXT, peer="bytes", told=False),
    }
    for way in ("running_offsets", "no_text_offset"):
        by_name[way] = replace(by_name["untold"], title=f"no tokenizer, {WAYS[way]}", ways=(way,))
    for way in ("prompt_logprobs", "nested_ids", "no_usage", "drop_first", "one_by_one"):
        by_name[way] = Scenario(f"a server that {WAYS[way]}", CORE, ways=(way,), peer="bytes")
    by_name["ignore_echo"] = Scenario(WAYS["ignore_echo"], ["rw_ll"], ways=("ignore_echo",), refused=REFUSED)
    return by_name


@contextmanager
def served(peer: str, scenario: Scenario, folder: Path) -> Iterator[str]:
    """The address of the scenario's server; it ends with the context."""
    command = [peer, "-m", "bench.lm_eval.random_server", str(folder), "--context", str(CONTEXT)]
    command += [
        "--tokenizer",
        scenario.tokenizer,
        *(part for way in scenario.ways for part in ("--way", way)),
    ]
    process = subprocess.Popen(
        command, cwd=PROJECT, env={**os.environ, **OFFLINE}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["base_url"]
    finally:
        process.stdin.close()
        process.wait(30)


def completion(base_url: str, prompt: str) -> str:
    """What the model says, as far as it is whole characters."""
    body = {"model": "random", "prompt": prompt, "max_tokens": 6, "temperature": 0}
    request = urllib.request.Request(
        f"{base_url}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as reply:
        text: str = json.loads(reply.read())["choices"][0]["text"]
    return text.partition("\ufffd")[0]


def write_definitions(folder: Path) -> list[str]:
    """The benchmarks, a file each; returns their names."""
    folder.mkdir(parents=True)
    shutil.copy(BENCHMARKS / "utils.py", folder)
    names = []
    for source in sorted(BENCHMARKS.glob("*.yaml")):
        for part in re.split(r"^--- # ", source.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            stem, _, text = part.partition("\n")
            (folder / (stem if stem.startswith("_") else f"{stem}.yaml")).write_text(text, encoding="utf-8")
            names += re.findall(r"^(?:task|group): (rw_\w+)", text, flags=re.MULTILINE)
    return names


def run(peer: str, scenario: Scenario, key: str, place: Path, size: int) -> list[str]:
    """Prints a scenario's rows; returns what is wrong."""
    asked = Asked(
        place / "definitions",
        scenario.names,
        "",
        "random",
        place / scenario.tokenizer,
        CONTEXT,
        scenario.chat,
    )
    answered = place / f"peer-{scenario.peer or key}"
    with served(peer, scenario, place / scenario.tokenizer) as base_url, home(place / "home") as environment:
        asked = replace(asked, base_url=base_url)
        if not (place / "definitions" / "data").exists():
            write_data(
                place / "definitions" / "data", SEED, size, lambda prompt: completion(base_url, prompt)
            )
        if scenario.peer is None and scenario.refused is None:
            by_the_harness(peer, asked, answered, scenario.as_text)
        own = by_this_project(
            asked if scenario.told else replace(asked, tokenizer=None), place / f"own-{key}", environment
        )
    print(f"\n{key}: {scenario.title}")
    if scenario.refused is not None:
        said = scenario.refused in own.stdout + own.stderr
        print(f"{'refused, as it should be' if said else 'NOT REFUSED'}")
        return [] if said else [f"{key}: not refused"]
    names = scenario.names if scenario.peer else list(results(answered))
    found = list(compare(answered, place / f"own-{key}", names))
    print("\n".join(comparison.line() for comparison in found), flush=True)
    return [f"{key}: {comparison.name}: {said}" for comparison in found for said in comparison.wrong]


def main() -> int:
    """Runs the scenarios and says which numbers differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", help="python with lm-eval[api], torch and transformers")
    parser.add_argument("--only", action="append", help="names of scenarios; bytes is needed by most")
    parser.add_argument("--size", type=int, default=18, help="documents a benchmark")
    options = parser.parse_args()
    peer = peer_python(options.peer, "torch", "transformers")
    if peer is None:
        print(f"skipped: {ABSENT}, torch and transformers")
        return 0
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        for key, scenario in scenarios(write_definitions(place / "definitions")).items():
            if not options.only or key in options.only:
                wrong += run(peer, scenario, key, place, options.size)
    print(f"\n{len(wrong)} differences" if wrong else "\nno difference")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
