"""Writes what the harness asks for the tests' definitions: ``expected.json`` beside them.

    python bench/lm_eval/record.py --peer PYTHON

For every benchmark the digest of all its requests and documents, and the requests of its first and last
document in full, so that a difference can be read.
"""

import argparse
import hashlib
import json
from typing import Any

from prompts import CASES, of_peer

from bench.lm_eval.peer import ABSENT, peer_python


def digest_of(value: Any) -> str:
    """SHA-256 of the JSON text."""
    return hashlib.sha256(json.dumps(value, ensure_ascii=False, sort_keys=True).encode()).hexdigest()


def recorded(peer: dict[str, Any]) -> dict[str, Any]:
    """The entry of one benchmark."""
    requests = [[one["doc"], *one["args"]] for one in peer["requests"]]
    last = requests[-1][0]
    return {
        "requests": digest_of(requests),
        "docs": digest_of(peer["docs"]),
        "first": [request for request in requests if request[0] == 0],
        "last": [request for request in requests if request[0] == last],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer")
    python = peer_python(parser.parse_args().peer)
    if python is None:
        raise SystemExit(ABSENT)
    from tasks.benchmarks.lm_eval import build_index

    index = build_index([CASES])
    names = sorted(name for name, entry in index.entries.items() if entry.kind == "benchmark")
    texts = [
        name
        for name in names
        if index.entries[name].config.get("output_type", "generate_until") == "generate_until"
    ]
    entries = {name: recorded(entry) for name, entry in of_peer(python, CASES, names).items()}
    chats = of_peer(python, CASES, texts, chat=True)
    entries |= {f"{name} (chat)": recorded(entry) for name, entry in chats.items()}
    (CASES / "expected.json").write_text(
        json.dumps(entries, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
