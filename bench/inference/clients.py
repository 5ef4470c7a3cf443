"""One client a process: ``python -m bench.inference.clients NAME BASE_URL COUNT CONCURRENCY FOLDER``.

Prints a JSON object with the wall and CPU seconds of the request phase alone, imports left out.
"""

import asyncio
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.inference.prompts import messages, requests

MAX_TOKENS = 256


async def aiohttp_loop(base_url: str, count: int, concurrency: int) -> None:
    """The bound: no accounting, no journal, no retries."""
    import aiohttp
    import orjson

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=concurrency)) as session:

        async def ask(index: int) -> None:
            body = {"model": "demo", "messages": messages(index), "max_tokens": MAX_TOKENS, "temperature": 0}
            async with session.post(
                f"{base_url}/chat/completions",
                data=orjson.dumps(body),
                headers={"Content-Type": "application/json"},
            ) as response:
                answer = orjson.loads(await response.read())
                assert answer["choices"][0]["message"]["content"]

        await workers(ask, count, concurrency)


async def official(base_url: str, count: int, concurrency: int) -> None:
    """The official client as it comes."""
    import openai

    async with openai.AsyncOpenAI(base_url=base_url, api_key="none") as client:

        async def ask(index: int) -> None:
            answer = await client.chat.completions.create(
                model="demo", messages=messages(index), max_tokens=MAX_TOKENS, temperature=0
            )
            assert answer.choices[0].message.content

        await workers(ask, count, concurrency)


async def official_aiohttp(base_url: str, count: int, concurrency: int) -> None:
    """The official client with its aiohttp transport and raw responses."""
    import openai

    async with openai.AsyncOpenAI(
        base_url=base_url, api_key="none", http_client=openai.DefaultAioHttpClient()
    ) as client:

        async def ask(index: int) -> None:
            raw = await client.chat.completions.with_raw_response.create(
                model="demo", messages=messages(index), max_tokens=MAX_TOKENS, temperature=0
            )
            assert raw.http_response.content

        await workers(ask, count, concurrency)


async def workers(ask: Callable[[int], Awaitable[None]], count: int, concurrency: int) -> None:
    """Asks ``count`` times, ``concurrency`` at once."""
    indices = iter(range(count))

    async def work() -> None:
        for index in indices:
            await ask(index)

    await asyncio.gather(*(work() for _ in range(concurrency)))


def nightjar(base_url: str, count: int, concurrency: int, folder: Path) -> None:
    """This project's inference stage: retries, journal, store and rows included."""
    from tasks.models.answers.segments import AnswerStore
    from tasks.models.config import ModelConfig, SampleParams
    from tasks.models.records import InferenceOptions
    from tasks.models.respond import respond
    from tasks.store.storage import Store

    config = {"model": "demo", "base_url": base_url, "max_concurrency": concurrency}
    model = ModelConfig.model_validate({"name": "demo", "config": config})
    sampling = SampleParams(max_tokens=MAX_TOKENS, temperature=0)
    options = InferenceOptions(sampling=sampling, journal_dir=folder / "journal")
    responded = respond(model, [requests(count)], AnswerStore(Store(str(folder / "store"))), options)
    assert sum(batch.num_rows for batch in responded.batches) == count
    assert responded.tally.failed == 0


def main() -> None:
    """Runs one client and prints what it took."""
    name, base_url, count, concurrency, folder = sys.argv[1:]
    loops = {"aiohttp": aiohttp_loop, "official": official, "official, aiohttp": official_aiohttp}
    start, cpu = time.perf_counter(), _cpu()
    if name == "nightjar":
        nightjar(base_url, int(count), int(concurrency), Path(folder))
    else:
        asyncio.run(loops[name](base_url, int(count), int(concurrency)))
    print(json.dumps({"seconds": time.perf_counter() - start, "cpu": _cpu() - cpu}))


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
