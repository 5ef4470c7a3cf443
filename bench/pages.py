"""How soon the pages can be used: an index of 1,000 runs and a report of 5,000 samples, in Chromium.

``python -m bench.pages`` prints milliseconds from the beginning of the load until the page takes a search
(every run or text is in it) and has drawn a frame after it, the first load of a fresh browser and the best of
five; what of the best is CPU time of the page's main thread, which others on the machine hardly move; and
those of a search. Under 2 s to use a page, under 100 ms to search it, are wanted.
"""

import argparse
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.history import write
from tasks.reporting.overview import write_index
from tasks.reporting.report import write_report
from tasks.reporting.view import ResponseView, RunView, SampleView
from tasks.store.schemas import RESULTS
from tasks.store.storage import Store

LOADS = 5
LIMIT, SEARCH_LIMIT = 2_000, 100
MODELS = ("small", "large")
CHARACTERS = 2_000
"""Of each answer."""
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
USED = """async ([selector, text]) => {
    const field = document.querySelector(selector);
    const begin = performance.now();
    field.value = text;
    field.dispatchEvent(new Event('input', {bubbles: true}));
    document.body.getBoundingClientRect();
    const searched = performance.now() - begin;
    await new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)));
    return [searched, performance.now(), document.getElementById('status').textContent];
}"""


def samples(count: int) -> Iterator[SampleView]:
    """Samples of two models with answers of words drawn at random, a filter, a score and a facet."""
    draw = random.Random(7)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(20_000)]
    for number in range(count):
        answer = " ".join(draw.choices(words, k=CHARACTERS // 7))
        yield SampleView(
            item_id=f"item-{number // len(MODELS)}",
            model_name=MODELS[number % len(MODELS)],
            prompt_template="default",
            prompt=" ".join(draw.choices(words, k=60)),
            references=["42"],
            responses=[
                ResponseView(f"{answer} 42", finish_reason="stop", completion_tokens=300, seconds=1.0)
            ],
            filters={"last-number": ["42"]},
            scores={"exact_match,last-number": [float(draw.random() < 0.6)]},
            facets={"item.subject": f"subject {number % 7}"},
        )


def report(path: Path, count: int) -> Path:
    view = RunView(
        {"benchmark": "bench", "run_id": "bench", "config": {}}, pa.Table.from_pylist([], schema=RESULTS),
        lambda: samples(count),
    )  # fmt: skip
    return write_report(view, path).path


@dataclass(frozen=True)
class Used:
    """Milliseconds until a page's first search was drawn, from the beginning of the load, the CPU time of its
    main thread by then, and those of the search; and what the page answered."""

    drawn: float
    cpu: float
    searched: float
    status: str


def used(browser: Any, path: Path, field: str, text: str) -> Used:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]")
    searched, drawn, status = page.evaluate(USED, [field, text])
    metrics = {entry["name"]: entry["value"] for entry in devtools.send("Performance.getMetrics")["metrics"]}
    page.close()
    return Used(drawn, 1000 * metrics["ThreadTime"], searched, status)


def loads(playwright: Any, path: Path, field: str, text: str) -> list[Used]:
    """Several loads of a page by one browser, the first of which finds nothing in its caches."""
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(OPTIONS))
    found = [used(browser, path, field, text) for _ in range(LOADS)]
    browser.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.pages")
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--samples", type=int, default=5_000)
    given = parser.parse_args()
    if CHROMIUM is None:
        print("no Chromium on the PATH (apt-get install chromium)")
        return 0
    from playwright.sync_api import sync_playwright

    held = True
    with tempfile.TemporaryDirectory(prefix="nightjar-bench-") as folder, sync_playwright() as playwright:
        store = Store(f"{folder}/store")
        write(store, given.runs)
        index = write_index(store, Path(folder) / "results")
        shown = report(Path(folder) / "report.html", given.samples)
        pages = [
            (f"index of {given.runs:,} runs", index, "#find", "no such run", "0 of"),
            (f"report of {given.samples:,} samples", shown, "#search", "no such word", "0 of"),
        ]
        for name, path, field, text, answer in pages:
            found = loads(playwright, path, field, text)
            assert all(answer in load.status for load in found), found
            best, searched = min(found, key=lambda load: load.drawn), min(load.searched for load in found)
            held &= best.drawn < LIMIT and searched < SEARCH_LIMIT
            first, megabytes = found[0].drawn, path.stat().st_size / 1e6
            print(f"{name:<28} {megabytes:6.1f} MB   first load {first:5.0f} ms, best of {LOADS} ", end="")
            print(f"{best.drawn:5.0f} ms (limit {LIMIT}; CPU {best.cpu:.0f} ms), ", end="")
            print(f"search {searched:5.1f} ms (limit {SEARCH_LIMIT})")
    print("holds" if held else "BROKEN")
    return int(not held)


if __name__ == "__main__":
    raise SystemExit(main())
