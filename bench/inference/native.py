"""What a request costs by a provider's own client, and by our engine with our codec, side by side.

``python -m bench.inference.native --clients PYTHON [--count 2000] [--concurrency 128]``. ``PYTHON``, else the
variable ``NIGHTJAR_BENCH_CLIENTS``, is an interpreter with ``anthropic`` and ``google-genai``, which this
project does not install. A server in a process of its own answers in each API's own form after 50 ms. CPU
seconds are those of the request phase.
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROMPT = "Question: A bakery bakes {} trays of 12 rolls. How many rolls are there?\nAnswer:"
LATENCY = 0.05
REPLIES: dict[str, dict[str, Any]] = {
    "anthropic": {
        "id": "msg_01", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
        "stop_sequence": None, "content": [{"type": "text", "text": "120"}],
        "usage": {"input_tokens": 20, "output_tokens": 3},
    },
    "gemini": {
        "candidates": [
            {"content": {"parts": [{"text": "120"}], "role": "model"}, "finishReason": "STOP", "index": 0}
        ],
        "usageMetadata": {"promptTokenCount": 20, "candidatesTokenCount": 3, "totalTokenCount": 23},
        "modelVersion": "m", "responseId": "r",
    },
}  # fmt: skip


def serve() -> None:
    """Answers until it is ended; prints its address."""
    from aiohttp import web

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(LATENCY)
        return web.json_response(REPLIES["anthropic" if request.path.endswith("/messages") else "gemini"])

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()

    asyncio.run(run())


async def official(kind: str, address: str, count: int, concurrency: int) -> None:
    """The provider's client as it comes; raises ImportError where it is not installed."""
    ask: Any
    if kind == "anthropic":
        import anthropic

        messages = anthropic.AsyncAnthropic(base_url=address, api_key="none", max_retries=0).messages

        async def ask(index: int) -> str:
            said = [{"role": "user", "content": PROMPT.format(index)}]
            answer = await messages.create(model="m", max_tokens=256, messages=said)
            return str(answer.content[0].text)
    else:
        from google import genai

        options = genai.types.HttpOptions(base_url=address)
        models = genai.Client(api_key="none", http_options=options).aio.models

        async def ask(index: int) -> str:
            return str((await models.generate_content(model="m", contents=PROMPT.format(index))).text)

    indices = iter(range(count))

    async def work() -> None:
        for index in indices:
            assert await ask(index) == "120"

    await asyncio.gather(*(work() for _ in range(concurrency)))


def ours(kind: str, address: str, count: int, concurrency: int, folder: Path) -> None:
    """This project's inference stage: retries, journal, store and rows included."""
    import orjson
    import pyarrow as pa

    from bench.inference.prompts import requests
    from tasks.models.answers.segments import AnswerStore
    from tasks.models.config import ModelConfig, SampleParams
    from tasks.models.records import InferenceOptions
    from tasks.models.respond import respond
    from tasks.store.schemas import REQUESTS
    from tasks.store.storage import Store

    rows = requests(count).to_pylist()
    for index, row in enumerate(rows):
        row["prompts"] = [orjson.dumps([{"role": "user", "content": PROMPT.format(index)}]).decode()]
    place = f"{address}/v1" if kind == "anthropic" else f"{address}/v1beta"
    config = {"model": "m", "base_url": place, "max_concurrency": concurrency}
    model = ModelConfig.model_validate({"name": "m", "type": kind, "config": config})
    options = InferenceOptions(sampling=SampleParams(max_tokens=256), journal_dir=folder / "journal")
    batch = pa.RecordBatch.from_pylist(rows, schema=REQUESTS)
    responded = respond(model, [batch], AnswerStore(Store(str(folder / "store"))), options)
    assert sum(batch.num_rows for batch in responded.batches) == count
    assert responded.tally.failed == 0


def ask(who: str, kind: str, address: str, count: int, concurrency: int) -> None:
    """One client in this process; prints wall and CPU seconds, those of its imports left out."""
    with tempfile.TemporaryDirectory() as folder:
        for number, portion in enumerate((concurrency, count)):  # the first imports and connects
            start, cpu = time.perf_counter(), time.process_time()
            if who == "official":
                asyncio.run(official(kind, address, portion, concurrency))
            else:
                ours(kind, address, portion, concurrency, Path(folder) / str(number))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    measured = {"seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu, "peak": peak}
    print(json.dumps(measured))


VARIABLE = "NIGHTJAR_BENCH_CLIENTS"


def main() -> None:
    """Measures each provider's client beside ours and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", default=os.environ.get(VARIABLE), help="interpreter that has them")
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--concurrency", type=int, default=128)
    args = parser.parse_args()
    if args.clients is None:
        print(f"skipped: name an interpreter with anthropic and google-genai by --clients or {VARIABLE}")
        return
    from bench.inference.throughput import running  # here: the clients' interpreter reads this file, too

    print("| API | client | requests/s | CPU µs a request | of ours |\n|---|---|---|---|---|")
    with running("bench.inference.native", "serve") as address:
        for kind in REPLIES:
            costs: dict[str, float] = {}
            for who, python in (("ours", sys.executable), ("official", args.clients)):
                command = [python, __file__, who, kind, address, str(args.count), str(args.concurrency)]
                environment = {"PYTHONPATH": str(Path(__file__).parents[2])} if who == "ours" else {}
                done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
                if done.returncode:
                    sys.exit(f"{who} client of {kind} failed:\n{done.stderr[-2000:]}")
                measured = json.loads(done.stdout)
                costs[who] = measured["cpu"] / args.count * 1e6
                rate = args.count / measured["seconds"]
                share = costs[who] / costs["ours"]
                print(f"| {kind} | {who} | {rate:,.0f} | {costs[who]:,.0f} | {share:.1f} |", flush=True)


if __name__ == "__main__":
    match sys.argv[1:2]:
        case ["serve"]:
            serve()
        case ["ours" | "official" as name]:
            ask(name, *sys.argv[2:4], *map(int, sys.argv[4:6]))  # type: ignore[call-arg]
        case _:
            main()
