"""What the built-in server answers when one request of several that are worked on together is at fault.

    PYTHON tiny_faults.py FOLDER

Prints a line of JSON for each fault: what each request is told with the fault, and without it; and how many
sequences steps have where one request comes later than the others.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import transformers
from tiny_models import CONTEXT, http_server, loading, make, server
from transformers_server.worker import DecodeBatch

MARK = 7
"""A token that no prompt but the marked one has."""
PROMPTS = [f"{CONTEXT} the river", "a bird of", f"{CONTEXT} the night", CONTEXT, "stone", "a light"]
BODY = {"max_tokens": 8, "temperature": 0.0}
SAMPLED = {"max_tokens": 8, "temperature": 1.5, "seed": 3}
SCORED = {"max_tokens": 0, "echo": True, "logprobs": 1}


def fresh(folder: Path, keeps: bool) -> Any:
    """A server whose thread has not begun, so that what waits is worked on together."""
    told = http_server._parser().parse_args(["--model", str(folder)])
    worker = server.Worker(*loading.load(told, "cpu", torch.float32), 1 << 22, 64)
    with torch.inference_mode():
        worker.passes.compare()
    assert worker.passes.keeps
    worker.passes.keeps = keeps
    return server.Service(worker, "tiny")


def asked(service: Any, bodies: list[dict[str, Any]]) -> list[Any]:
    """What each request is told; all of them wait before the first is worked on."""

    def one(body: dict[str, Any]) -> Any:
        try:
            choice = service.completions(body)["choices"][0]
        except server.Refused as refused:
            return {"refused": str(refused)}
        return choice["logprobs"]["token_logprobs"] if body.get("echo") else choice["text"]

    with ThreadPoolExecutor(len(bodies)) as pool:
        told = [pool.submit(one, body) for body in bodies]
        while service.worker._queue.qsize() < len(bodies):
            time.sleep(0.01)
        threading.Thread(target=service.worker.run, daemon=True).start()
        return [each.result() for each in told]


def fails_on(service: Any, token: int, only_steps: bool = False) -> None:
    """Makes every pass fail that has the token in it; those of one token alone with ``only_steps``."""
    passes = service.worker.passes
    whole, kept = passes.whole, passes.kept

    def checked(rows: Any, width: int) -> None:
        if any(token in list(map(int, row)) for row in rows) and (width == 1 or not only_steps):
            raise IndexError("no such token")

    def broken_whole(rows: Any) -> Any:
        checked(rows, max(map(len, rows)))
        return whole(rows)

    def broken_kept(ids: Any, *more: Any, **named: Any) -> Any:
        checked(ids, ids.shape[1])
        return kept(ids, *more, **named)

    passes.whole, passes.kept = broken_whole, broken_kept


def marked(service: Any, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The prompts, and in their middle one with the token that is at fault."""
    own = service._tokenizer
    prompts: list[Any] = [own(text)["input_ids"] for text in PROMPTS]
    prompts.insert(3, [*own(CONTEXT)["input_ids"], MARK, *own(" the river")["input_ids"]])
    assert sum(MARK in prompt for prompt in prompts) == 1
    return [{"prompt": [prompt], **body} for prompt in prompts]


def at_its_prompt(service: Any, body: dict[str, Any], fault: bool) -> list[Any]:
    if fault:
        fails_on(service, MARK)
    return asked(service, marked(service, body))


def at_a_step(service: Any, body: dict[str, Any], fault: bool, only_steps: bool = False) -> list[Any]:
    """The token at fault is one that a single answer has, and not as its first."""
    bodies = marked(service, body)
    if fault:
        fails_on(service, LONE[0], only_steps)
    return asked(service, bodies)


def by_its_own_settings(service: Any, body: dict[str, Any], fault: bool) -> list[Any]:
    bodies = marked(service, body)
    if fault:
        bodies[3]["temperature"] = 5e-324
    return asked(service, bodies)


def at_their_join(service: Any, body: dict[str, Any], fault: bool) -> list[Any]:
    """Prompts of several lengths, which can't be made one batch."""

    def broken(*_: Any) -> None:
        raise IndexError("no such shape")

    taken = DecodeBatch.take
    try:
        DecodeBatch.take = broken if fault else taken  # type: ignore[method-assign]
        return asked(service, marked(service, body))
    finally:
        DecodeBatch.take = taken  # type: ignore[method-assign]


def steps(service: Any) -> list[int]:
    """How many sequences each step has; one request comes while the prompts of the others are begun."""
    worker, rows = service.worker, []
    begun, step = worker._begun, worker._step
    late = [server.Job(service._tokenizer("a light")["input_ids"], False, max_tokens=8)]

    def disturbed(jobs: Any) -> Any:
        if late:
            worker.add(late.pop())
        return begun(jobs)

    def counted(batch: Any) -> None:
        rows.append(len(batch.jobs))
        step(batch)

    worker._begun, worker._step = disturbed, counted
    asked(service, marked(service, BODY))
    return rows


LONE: list[int] = []


def find_lone(service: Any) -> None:
    """A token that one greedy answer alone has, behind its first, and no prompt."""
    bodies = marked(service, BODY)
    own = service._tokenizer
    found = [own(text, add_special_tokens=False)["input_ids"] for text in asked(service, bodies)]
    prompts = {token for body in bodies for token in body["prompt"][0]}
    for number, ids in enumerate(found):
        others = {token for other, row in enumerate(found) if other != number for token in row}
        LONE.extend(token for token in ids[1:-1] if token not in others | prompts)
    assert LONE


CASES: dict[str, tuple[Callable[..., list[Any]], dict[str, Any]]] = {
    "scored": (at_its_prompt, SCORED),
    "begun": (at_its_prompt, SAMPLED),
    "gone on with": (at_a_step, BODY),
    "a step alone": (lambda *told: at_a_step(*told, only_steps=True), BODY),
    "drawn": (by_its_own_settings, SAMPLED),
    "joined": (at_their_join, BODY),
}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    make("llama", folder)
    find_lone(fresh(folder, True))
    for name, (way, body) in CASES.items():
        for keeps in (True, False):
            sound, faulty = (way(fresh(folder, keeps), body, fault) for fault in (False, True))
            row = {"name": name, "keeps": keeps, "sound": sound, "faulty": faulty}
            print(json.dumps(row), flush=True)
    for keeps in (True, False):
        print(json.dumps({"name": "late", "keeps": keeps, "steps": steps(fresh(folder, keeps))}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
