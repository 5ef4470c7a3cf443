"""The three pages (report, comparison, index of runs) in a real browser: Debian's Chromium, headless, through
Playwright.

All tests that need it stand here, so that one browser does for all. It can't live longer than the module:
while Playwright is open, ``asyncio.run`` is refused to whoever comes next. How fast the pages are is measured
by ``bench.pages``.
"""

import dataclasses
import hashlib
import io
import itertools
import json
import random
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image, ImageDraw

from tasks.reporting import numbers as numbers_of_tables
from tasks.reporting.compare import PairView, write_compare_report
from tasks.reporting.night import write_night
from tasks.reporting.overview import ROWS, write_index
from tasks.reporting.page import read_asset
from tasks.reporting.report import write_report
from tasks.reporting.view import LabelView, ResponseView, RunView, SampleView
from tasks.store.schemas import RESULTS
from tasks.store.storage import Store
from tests.tasks.reporting.recorded_runs import record, row
from tests.tasks.reporting.report_recordings import HOSTILE, generated, gsm8k, result, run_of

pytestmark = pytest.mark.services

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def wait_until(page: Any, expression: str, arg: Any = None) -> None:
    """Polls from outside: the page's own policy forbids it to evaluate text, as Playwright's polling does."""
    for _ in range(300):
        if page.evaluate(expression, arg):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"never so: {expression}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on the PATH (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=list(OPTIONS))
        yield launched
        launched.close()


class Opened:
    """A page with everything that it logged and asked for."""

    def __init__(self, browser: Any, path: Path, **context: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **context})
        self.page = self.context.new_page()
        self.logged: list[str] = []
        self.requested: list[str] = []
        self.page.on("console", lambda message: self.logged.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.logged.append(f"error: {error}"))
        self.page.on("request", lambda request: self.requested.append(request.url))
        self.page.goto(path.as_uri())

    def ready(self) -> Any:
        """The page, once search has seen every text."""
        self.page.wait_for_selector("html[data-ready]", timeout=30_000)
        return self.page

    def search(self, text: str) -> str:
        """What the status says of a search."""
        status: str = self.page.evaluate(
            """(text) => {
                const field = document.querySelector('input[type=search]');
                field.value = text;
                field.dispatchEvent(new Event('input', {bubbles: true}));
                return document.getElementById('status').textContent;
            }""",
            text,
        )
        return status


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(gsm8k(hostile=HOSTILE), tmp_path_factory.mktemp("report") / "report.html").path


@pytest.fixture
def opened(browser: Any, recorded: Path) -> Iterator[Opened]:
    page = Opened(browser, recorded)
    yield page
    page.context.close()


def test_recordings_load_without_an_error_or_a_request(opened: Opened, recorded: Path) -> None:
    page = opened.ready()
    assert opened.logged == []
    assert opened.requested == [recorded.as_uri()]
    assert page.locator("#status").inner_text() == "5,276 samples"


def test_a_samples_score_has_the_digits_that_the_tables_have(browser: Any) -> None:
    page = browser.new_page()
    numbers = [0.00004, -0.00002, 0.123456, -1e-12, 12.3456, 1.0, 0.9996]
    shown = page.evaluate(f"numbers => {{ {read_asset('dom.js')}\n return numbers.map(score); }}", numbers)
    assert shown == ["0.00004", "-0.00002", "0.1235", "0", "12.35", "1", "0.9996"]
    assert shown == [numbers_of_tables.number(value).rstrip("0").rstrip(".") or "0" for value in numbers]
    page.close()


def test_search_finds_words_phrases_and_nothing_else(opened: Opened) -> None:
    opened.ready()
    for query, found in [
        ("eggs", "80 of"),
        ("e", "5,276 samples"),
        ('"per day" ducks', "8 of"),
        ("zzqq", "0 of"),
    ]:
        assert opened.search(query).startswith(found), query


def test_markup_from_a_model_stays_text(opened: Opened) -> None:
    page = opened.ready()
    opened.search("onerror")
    assert page.locator("#status").inner_text().startswith("4 of")
    page.locator(".row").first.click()
    page.wait_for_selector(".detail .response")
    assert HOSTILE in page.locator(".detail .response").inner_text()
    assert page.locator("img").count() == 0
    assert page.locator("main script").count() == 0
    assert page.title() == "gsm8k – Nightjar"
    assert opened.logged == []


@pytest.fixture
def pictured(tmp_path: Path) -> Path:
    """A report of a chat with a wide picture, one in a few colours with a transparent ground, and one that is
    gone."""
    kept = {hashlib.sha256(content).hexdigest(): content for content in (squares(640, 320), stripes(90))}
    gone = hashlib.sha256(b"gone").hexdigest()
    parts = [{"type": "image_url", "image_url": {"url": f"sha256:{digest}"}} for digest in (*kept, gone)]
    asked = [{"role": "user", "content": [{"type": "text", "text": "How many squares?"}, *parts]}]
    sample = SampleView("i0", "seeing", "default", json.dumps(asked), ["3"], [ResponseView("3")], chat=True)
    view = run_of(lambda: iter([sample]), {"benchmark": "pictures", "run_id": "pictures"})
    view = dataclasses.replace(view, media=kept.__getitem__)
    return write_report(view, tmp_path / "report.html").path


def squares(width: int, height: int) -> bytes:
    """A PNG with three red squares in a row."""
    picture = Image.new("RGB", (width, height), "white")
    for place in range(3):
        ImageDraw.Draw(picture).rectangle([40 + 200 * place, 90, 180 + 200 * place, 230], fill="red")
    sink = io.BytesIO()
    picture.save(sink, format="PNG")
    return sink.getvalue()


def stripes(side: int) -> bytes:
    """A GIF of four colours, one of them transparent."""
    picture = Image.new("P", (side, side))
    picture.putpalette([0, 0, 0, 255, 0, 0, 0, 160, 0, 0, 0, 255])
    picture.putdata([place // 10 % 4 for place in range(side * side)])
    sink = io.BytesIO()
    picture.save(sink, format="GIF", transparency=0)
    return sink.getvalue()


def test_pictures_of_a_chat_are_drawn_small_and_ask_for_nothing(browser: Any, pictured: Path) -> None:
    opened = Opened(browser, pictured)
    page = opened.ready()
    page.wait_for_selector(".detail .prompt img")
    wait_until(page, "[...document.querySelectorAll('.detail img')].every((one) => one.complete)")
    sizes = page.evaluate(
        """[...document.querySelectorAll('.detail .prompt img')].map((one) => {
            const box = one.getBoundingClientRect();
            return [one.naturalWidth, one.naturalHeight, box.width, box.height];
        })"""
    )
    assert sizes == [[160, 80, 160, 80], [90, 90, 90, 90]]
    assert page.evaluate(PIXEL, [0, 27, 40]) == [255, 0, 0]
    assert page.evaluate(PIXEL, [0, 80, 5]) == [255, 255, 255]
    gone = hashlib.sha256(b"gone").hexdigest()
    assert f"[image_url sha256:{gone}]" in page.locator(".detail .prompt").inner_text()
    assert page.locator(".detail img").first.get_attribute("alt").startswith("image sha256:")
    assert opened.logged == []
    assert [url for url in opened.requested if not url.startswith("data:")] == [pictured.as_uri()]
    opened.context.close()
    phone = Opened(browser, pictured, viewport={"width": 360, "height": 740})
    phone.ready()
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= 360
    phone.context.close()


PIXEL = """([number, x, y]) => {
    const picture = document.querySelectorAll('.detail img')[number];
    const canvas = document.createElement('canvas');
    [canvas.width, canvas.height] = [picture.naturalWidth, picture.naturalHeight];
    const context = canvas.getContext('2d');
    context.drawImage(picture, 0, 0);
    const colours = [...context.getImageData(x, y, 1, 1).data].slice(0, 3);
    return colours.map((value) => 255 * Math.round(value / 255));  // compressed ones are near, not equal
}"""


def test_a_filters_find_is_marked_in_the_response(opened: Opened) -> None:
    page = opened.ready()
    page.wait_for_selector(".detail mark")
    assert page.locator(".detail mark").first.inner_text() == "26"
    assert page.locator(".detail .response").inner_text().index("A: 26") > 0


def test_the_same_item_of_another_model_is_one_press_away(opened: Opened) -> None:
    page = opened.ready()
    page.locator(".siblings a", has_text="175b_verification").click()
    wait_until(page, "document.querySelector('.detail header p').textContent.includes('175b_verification')")
    assert page.locator("#status").inner_text() == "1 of 5,276 samples (item 0 only)"


def test_outcomes_and_facets_narrow_the_list_as_the_scores_say(opened: Opened) -> None:
    page = opened.ready()
    page.select_option("#pair", "exact_match,strict-match")
    page.select_option("#outcome", "right")
    page.select_option("[data-facet=model_name]", "175b_verification")
    right = round(0.5595 * 1319)
    assert page.locator("#status").inner_text() == f"{right} of 5,276 samples"
    page.get_by_role("button", name="Clear").click()
    assert page.locator("#status").inner_text() == "5,276 samples"


def test_an_empty_value_of_a_facet_can_be_chosen(browser: Any, tmp_path: Path) -> None:
    whole = questions(tmp_path)

    def samples() -> Iterator[SampleView]:
        for sample in whole.samples():
            yield dataclasses.replace(sample, facets={"topic": ("", "counting")[sample.doc_id % 4 == 0]})

    write_report(dataclasses.replace(whole, samples=samples, picked=None), tmp_path / "report.html")
    opened = Opened(browser, tmp_path / "report.html")
    page = opened.ready()
    page.select_option("[data-facet=topic]", label="(empty)")
    assert page.locator("#status").inner_text() == "60 of 80 samples"
    assert "(empty)" in page.locator("#detail").inner_text()
    page.reload()
    opened.ready()
    assert page.locator("#status").inner_text() == "60 of 80 samples"
    page.select_option("[data-facet=topic]", label="any")
    assert page.locator("#status").inner_text() == "80 samples"
    opened.context.close()


def test_facets_called_as_the_page_calls_model_and_prompt_are_chosen_beside_these(
    browser: Any, tmp_path: Path
) -> None:
    whole = questions(tmp_path)

    def samples() -> Iterator[SampleView]:
        for sample in whole.samples():
            small = sample.doc_id % 4 == 0
            for model in ("m", "q"):
                yield dataclasses.replace(
                    sample, model_name=model, facets={"Model": "small" if small else "large"}
                )

    write_report(dataclasses.replace(whole, samples=samples, picked=None), tmp_path / "report.html")
    opened = Opened(browser, tmp_path / "report.html")
    page = opened.ready()
    assert page.locator("#facet-controls span").all_text_contents() == ["model_name", "Model"]
    page.select_option("[data-facet=Model]", label="small")
    assert page.locator("#status").inner_text() == "40 of 160 samples"
    page.select_option("[data-facet=model_name]", label="q")
    assert page.locator("#status").inner_text() == "20 of 160 samples"
    opened.context.close()


def test_the_keyboard_is_enough(opened: Opened) -> None:
    page = opened.ready()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("eggs")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "list"
    first = page.locator(".detail h3").inner_text()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("j")
    wait_until(page, "document.querySelector('.row.chosen')?.dataset.at === '2'")
    wait_until(page, "(first) => document.querySelector('.detail h3').textContent !== first", arg=first)
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "detail"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "list"


def test_a_heading_sorts_the_table_by_number(opened: Opened) -> None:
    page = opened.ready()
    page.locator("table.results th", has_text="Value").get_by_role("button").click()
    assert page.locator("table.results tbody tr").first.inner_text().startswith("175b_verification")
    assert page.locator("table.results th[aria-sort=descending]").inner_text().startswith("Value")


def test_a_list_says_how_long_it_is(opened: Opened) -> None:
    assert opened.ready().locator("[role=option]").first.get_attribute("aria-setsize") == "5276"


LONG = "an-organisation/With-A-Model-Of-A-Rather-Long-Name-72B-Instruct"
LOOKS: dict[str, dict[str, Any]] = {
    "desktop": {},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 800}, "has_touch": True, "is_mobile": True},
    "dark phone": {"viewport": {"width": 390, "height": 800}, "color_scheme": "dark"},
}
READABLE = {
    "report": (".dim", "h2", ".chip.full", ".chip.none", ".contents a", "td", ".row-text", ".forest-name"),
    "comparison": (".dim", "h2", ".contents a", "td", ".row-text", ".forest-value", ".side-name", "ins"),
    "index": (".dim", "h2", "h3", ".chip.full", ".contents a", "td", "td a", ".legend li"),
}


def questions(folder: Path, suffix: str = "") -> RunView:
    """A run over a file of 40 questions by two models of long names, with a facet of the file's own."""
    path = folder / "questions.jsonl"
    path.write_text("".join(json.dumps({"question": number}) + "\n" for number in range(40)))

    def samples() -> Iterator[SampleView]:
        for model in (LONG, "small"):
            for number in range(40):
                right = (number + len(model + suffix)) % 3 > 0
                yield SampleView(
                    item_id=f"{number:016x}",
                    model_name=model,
                    prompt_template="default",
                    prompt=f"Question {number}: how many?",
                    references=[str(number)],
                    responses=[ResponseView(f"It is {number if right else number + 1}{suffix}.")],
                    filters={"last-number": [str(number if right else number + 1)]},
                    scores={"exact_match,last-number": [float(right)]},
                    facets={"item.subject": ("a subject of several words", "counting")[number % 2]},
                    doc_id=number,
                )

    name = f"questions-{'0123456789abcdef' * 2}" if not suffix else f"questions-{'fedcba9876543210' * 2}"
    config = {"dataset": {"path": "questions.jsonl"}, "base_dir": str(folder), "note": suffix}
    return run_of(samples, {"benchmark": "questions", "run_name": name, "run_id": name, "config": config})


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each of the three pages; the index has 1,000 runs: five benchmarks, four models, 50 nights of each."""
    folder = tmp_path_factory.mktemp("pages")
    base, candidate = questions(folder), questions(folder, " or so")
    compared = [
        PairView(
            "exact_match,last-number", 0.6, 0.7, 0.1, -0.05, 0.25, n_items=40, group=f"{LONG} · counting"
        ),
        PairView(
            "exact_match,last-number", 0.6, 0.5, -0.1, -0.25, 0.05, n_items=40, group="small · counting"
        ),
    ]
    store, draw = Store(str(folder / "store")), random.Random(1)
    for number in range(1000):
        night, place = divmod(number, 20)
        model = (LONG, "model-1", "model-2", "model-3")[place % 4]
        value = 0.5 + 0.1 * (place % 4) + 0.01 * draw.random()
        output = folder / "results" / f"run-{number}"
        record(
            store,
            f"run-{number}",
            night,
            row(model, value, benchmark=f"benchmark-{place // 4}"),
            output=str(output),
        )
    output.mkdir(parents=True)
    (output / "report.html").touch()
    names = ("questions-01234567…", "questions-fedcba98…")
    return {
        "report": write_report(base, folder / "report.html").path,
        "comparison": write_compare_report(base, candidate, compared, folder / "c.html", names=names).path,
        "index": write_index(store, folder / "results"),
    }


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", READABLE)
def test_a_page_can_be_read_and_used_everywhere(
    browser: Any, pages: dict[str, Path], name: str, look: str
) -> None:
    opened = Opened(browser, pages[name], **LOOKS[look])
    page = opened.ready()
    wide, window = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide <= window, "the page itself never scrolls sideways"
    assert page.evaluate(NAMELESS) == []
    if "phone" in look and name != "index":
        page.locator(".row").first.click()
    if name != "index":
        page.wait_for_selector(".detail .response")
    contrasts = page.evaluate(CONTRAST, list(READABLE[name]))
    assert min(contrasts.values()) >= 4.5, contrasts
    assert page.evaluate("document.documentElement.scrollWidth") <= window
    assert opened.logged == []
    beside = [pages[name].with_name(ROWS).as_uri()] if name == "index" else []
    assert opened.requested == [pages[name].as_uri(), *beside]
    opened.context.close()


def test_samples_are_named_by_their_line_and_the_address_keeps_the_chosen_one(
    browser: Any, pages: dict[str, Path]
) -> None:
    opened = Opened(browser, pages["report"])
    page = opened.ready()
    assert page.locator(".row b").first.text_content() == "questions.jsonl:1"
    assert "#" not in page.url
    page.select_option("[data-facet=model_name]", "small")
    page.locator(".row").nth(2).click()
    wait_until(page, "document.querySelector('.detail h3').textContent === 'Item questions.jsonl:3'")
    assert page.locator(".detail header p").inner_text().startswith(f"{2:016x} · Model: small")
    again = Opened(browser, pages["report"])
    again.page.goto(page.url)
    again.page.reload()
    again.ready()
    wait_until(again.page, "document.querySelector('.detail h3').textContent === 'Item questions.jsonl:3'")
    assert again.page.locator("#status").inner_text() == "40 of 80 samples"
    opened.context.close()
    again.context.close()


def test_the_keyboard_is_enough_for_a_comparison(browser: Any, pages: dict[str, Path]) -> None:
    opened = Opened(browser, pages["comparison"])
    page = opened.ready()
    page.wait_for_selector(".detail h3")
    page.keyboard.press("/")
    page.keyboard.type('"question 7"')
    assert page.locator("#status").inner_text() == "2 of 80 pairs"
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowDown")
    wait_until(page, "document.querySelector('.row.chosen')?.dataset.at === '1'")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "detail"
    assert page.locator(".side-name").all_inner_texts() == ["questions-01234567…", "questions-fedcba98…"]
    assert page.locator(".detail ins").first.inner_text() == " or so"
    opened.context.close()


def labelled(passed: dict[str, bool | None]) -> RunView:
    """A run that evaluation methods judged and no metric; None: the method could not."""
    samples = [
        SampleView(
            item_id=item,
            model_name="m",
            prompt_template="p",
            prompt=f"question {item}",
            responses=[ResponseView(f"answer {item}")],
            labels=[LabelView(item[0], 0, own, None, "unscored" if own is None else "ok")],
        )
        for item, own in passed.items()
    ]
    return run_of(lambda: iter(samples), {"benchmark": "b"})


def test_a_comparison_of_evaluation_methods_shows_what_became_of_each_label(
    browser: Any, tmp_path: Path
) -> None:
    base = labelled({"a1": True, "a2": True, "a3": False, "b1": True, "b2": None})
    candidate = labelled({"a1": True, "a2": False, "a3": True, "b1": False, "b2": True})
    pairs = [PairView("pass_rate,none", 0.7, 0.7, 0.0, label="a", wins=1, losses=1)]
    path = write_compare_report(base, candidate, pairs, tmp_path / "comparison.html").path
    opened = Opened(browser, path)
    page = opened.ready()
    assert page.locator(".row b").first.inner_text() in ("a2", "b1"), "what became worse is first"
    page.get_by_role("link", name="4", exact=True).click()
    wait_until(page, "() => document.getElementById('status').textContent === '4 of 5 pairs'")
    page.locator('a[href$="label=a&outcome=worse"]').click()
    wait_until(page, "() => document.getElementById('status').textContent === '1 of 5 pairs'")
    assert page.locator("#label").input_value() == "a"
    assert page.locator(".row .chip").inner_text() == "✓ → ✗ a"
    page.locator("#outcome").select_option("unscored")
    assert page.locator("#status").inner_text() == "0 of 5 pairs"
    page.locator("#label").select_option("b")
    assert page.locator("#status").inner_text() == "1 of 5 pairs"
    assert opened.logged == []
    opened.context.close()


def test_unscored_counts_of_labels_and_pairs_lead_to_these_samples_alone(
    browser: Any, tmp_path: Path
) -> None:
    view = labelled({"a1": True, "a2": None, "a3": None, "b1": False, "b2": None})
    own = result("b", "m", "p", "pass_rate,none", [1.0], 2) | {"label": "a"}
    view = dataclasses.replace(view, results=pa.Table.from_pylist([own], schema=RESULTS))
    opened = Opened(browser, write_report(view, tmp_path / "report.html").path)
    page = opened.ready()
    page.locator("table.results a", has_text="2").click()
    wait_until(page, "() => document.getElementById('status').textContent === '2 of 5 samples'")
    assert page.locator("#label").input_value() == "a:?"
    page.locator("#label").select_option("")
    page.locator("#outcome").select_option("unscored")
    assert page.locator("#status").inner_text() == "3 of 5 samples"
    opened.context.close()

    failed = ResponseView(None, "infra_error", "HTTP 503")
    samples = [
        SampleView(
            item_id=str(number),
            model_name="m",
            prompt_template="p",
            prompt="q",
            responses=responses,
            filters={"none": ["1", "1"], "first": ["1"]},
            scores={"em,first": [score], "em,none": [score, 1.0 if responses[1].ok else None]},
        )
        for number, (responses, score) in enumerate(
            [([ResponseView("1"), failed], 1.0), ([ResponseView("1"), ResponseView("1")], None)]
        )
    ]
    path = write_report(run_of(lambda: iter(samples), {"benchmark": "b"}), tmp_path / "first.html").path
    opened = Opened(browser, path)
    page = opened.ready()
    page.locator("#outcome").select_option("unscored")
    assert page.locator("#status").inner_text() == "2 items"
    page.locator("#pair").select_option("em,first")
    assert page.locator("#status").inner_text() == "1 of 2 items"
    opened.context.close()


def test_calls_of_tools_are_shown_and_found(browser: Any, tmp_path: Path) -> None:
    calls = [{"name": "weather", "arguments": {"city": "Paris"}}]
    responses = {
        "1": ResponseView("", tool_calls=calls, transcript='[{"role": "user", "content": "hello"}]'),
        "2": ResponseView("no call"),
    }
    samples = [
        SampleView(item_id=item, model_name="m", prompt_template="p", prompt="q", responses=[response])
        for item, response in responses.items()
    ]
    view = run_of(lambda: iter(samples), {"benchmark": "b"})
    for path, noun in (
        (write_report(view, tmp_path / "report.html").path, "samples"),
        (write_compare_report(view, view, [], tmp_path / "comparison.html").path, "pairs"),
    ):
        opened = Opened(browser, path)
        page = opened.ready()
        for query in ("paris", "hello"):
            assert opened.search(query) == f"1 of 2 {noun}"
        assert page.locator(".row .row-text").first.inner_text() == 'weather({"city": "Paris"})'
        opened.context.close()


@pytest.mark.parametrize(("models", "said"), [(1, "3 items"), (2, "6 entries")])
def test_the_list_calls_items_what_the_head_of_the_page_does(
    browser: Any, tmp_path: Path, models: int, said: str
) -> None:
    samples = [
        SampleView(
            item_id=str(number),
            model_name=f"model {model}",
            prompt_template="p",
            prompt="q",
            responses=[ResponseView("1"), ResponseView("2")],
        )
        for model in range(models)
        for number in range(3)
    ]
    view = run_of(lambda: iter(samples), {"benchmark": "b"})
    opened = Opened(browser, write_report(view, tmp_path / "report.html").path)
    assert opened.ready().locator("#status").inner_text() == said
    opened.context.close()


def test_a_thousand_runs_are_looked_through(browser: Any, pages: dict[str, Path]) -> None:
    opened = Opened(browser, pages["index"])
    page = opened.ready()
    assert page.locator("#found tr").count() == 200
    page.locator("#more").click()
    assert page.locator("#found tr").count() == 1000
    assert page.locator("#leaderboard table").count() == 5
    assert page.locator("#leaderboard .chip.full").count() == 5
    assert page.locator("#curves figure").count() == 5
    assert page.locator("#curves g circle").count() == 1000
    page.locator("#find").focus()
    page.keyboard.type("benchmark-3 model-2")
    assert page.locator("#status").inner_text() == "50 of 1,000 runs"
    assert page.locator("#found tr:visible").count() == 50
    for _ in range(5):  # over two choices and the columns to the table, then to its first heading
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Started (UTC)"
    page.keyboard.press("Enter")
    assert page.locator("#runs th[aria-sort=ascending]").inner_text().startswith("Started")
    assert page.evaluate("document.activeElement.textContent") == "Started (UTC)"
    page.locator("#runs th", has_text="Headline").get_by_role("button").click()
    values = [float(text.split()[0]) for text in page.locator("#found td:nth-child(6)").all_inner_texts()]
    assert values == sorted(values, reverse=True)
    assert len(values) == 50
    opened.context.close()


def test_runs_are_filtered_and_columns_picked(browser: Any, pages: dict[str, Path]) -> None:
    opened = Opened(browser, pages["index"])
    page = opened.ready()
    page.select_option("#of-benchmark", "benchmark-2")
    page.select_option("#of-model", "model-3")
    assert page.locator("#status").inner_text() == "50 of 1,000 runs"
    page.locator(".columns summary").click()
    for name in ("Cost", "Changed"):
        page.get_by_role("checkbox", name=name).click()
    headings = page.locator("#headings th").all_inner_texts()
    assert headings == ["Compare", "Started (UTC)", "Run", "Benchmark", "Models", "Headline", "Asked", "Cost"]
    assert page.locator("#found tr").first.locator("td").last.inner_text() == "0.5 EUR"
    opened.context.close()


def test_where_no_run_is_found_the_page_says_so_and_shows_all_again(
    browser: Any, pages: dict[str, Path]
) -> None:
    opened = Opened(browser, pages["index"])
    page = opened.ready()
    assert not page.locator("#nothing").is_visible()
    page.select_option("#of-benchmark", "benchmark-2")
    page.locator("#find").fill("nothing-like-this")
    assert page.locator("#found tr").count() == 0
    assert page.locator("#nothing").is_visible()
    page.get_by_role("button", name="Show all runs").click()
    assert page.locator("#status").inner_text() == "1,000 runs"
    assert page.evaluate("document.activeElement.id") == "find"
    assert not page.locator("#nothing").is_visible()
    assert page.locator("#headings th").count() == 8, "the columns stay as they were"
    assert opened.logged == []
    opened.context.close()


def test_the_tokens_of_a_run_are_a_column_that_can_be_picked(browser: Any, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    record(store, "told", 0, row("m", 0.5), tokens={"prompt": 1000, "completion": 234, "total": 1234})
    record(store, "not-told", 1, row("m", 0.5))
    opened = Opened(browser, write_index(store, tmp_path / "results"))
    page = opened.ready()
    page.locator(".columns summary").click()
    page.get_by_role("checkbox", name="Tokens").click()
    assert page.locator("#found td:nth-child(8)").all_inner_texts() == ["", "1,234"]
    opened.context.close()


def test_two_ticked_runs_show_their_comparison_or_the_command_that_makes_it(
    browser: Any, tmp_path: Path
) -> None:
    store, folder = Store(str(tmp_path / "store")), tmp_path / "results"
    for night, (name, place) in enumerate((("one", "one"), ("two", "two"), ("three", "it's"))):
        (folder / place).mkdir(parents=True)
        record(store, name, night, row("a", 0.5), output=str(folder / place))
    views = [run_of(lambda: iter(()), {"benchmark": "sums", "run_id": name}) for name in ("one", "two")]
    write_compare_report(*views, [], folder / "one" / "comparison.html")
    opened = Opened(browser, write_index(store, folder))
    page = opened.ready()
    page.get_by_role("checkbox", name="Compare two").check()
    assert page.locator("#pair").inner_text() == "Tick a second run to compare them."
    page.get_by_role("checkbox", name="Compare one").check()
    assert page.locator("#pair a").get_attribute("href") == "one/comparison.html"
    page.get_by_role("checkbox", name="Compare three").check()
    assert page.get_by_role("checkbox", checked=True).count() == 2
    command = page.locator("#pair pre").inner_text()
    assert shlex.split(command)[3:5] == ["results/one", "results/it's"]
    assert opened.logged == []
    opened.context.close()


def test_ticked_runs_are_called_by_their_models_and_the_command_keeps_the_folder(
    browser: Any, tmp_path: Path
) -> None:
    store, folder = Store(str(tmp_path / "store")), tmp_path / "my results"
    for night, model in enumerate("ab"):
        name = f"sums-{model * 32}"
        (folder / name).mkdir(parents=True)
        record(store, name, night, row(model, 0.5), output=str(folder / name))
    opened = Opened(browser, write_index(store, folder))
    page = opened.ready()
    for box in page.locator("#found input").all():
        box.check()
    assert page.locator("#pair b").inner_text() == "a → b"
    command = shlex.split(page.locator("#pair pre").inner_text())
    assert command[-1].endswith("my results/compared/sums-aaaaaaaa--sums-bbbbbbbb")
    opened.context.close()


def test_a_name_of_a_model_is_not_broken_where_there_is_room(browser: Any, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    about = {"benchmark": "gsm8k_recorded", "filter": "final-answer"}
    for night, model in enumerate(("175b_finetuning", "175b_verification")):
        record(store, f"gsm8k-recorded-{model[5] * 32}", night, row(model, 0.5, **about))
    opened = Opened(
        browser, write_index(store, tmp_path / "results"), viewport={"width": 1280, "height": 900}
    )
    cells = opened.ready().locator("#found td").all()
    heights = {cell.inner_text(): cell.evaluate(LINES) for cell in cells}
    assert (heights["175b_verification"], heights["gsm8k_recorded"]) == (1, 1)
    opened.context.close()


def test_a_name_written_from_right_to_left_leaves_the_numbers_beside_it_in_their_places(
    browser: Any, tmp_path: Path
) -> None:
    name = "\u0645\u0648\u062f\u0644 7b"
    failed = ResponseView(None, "infra_error", "HTTP 503")
    samples = [
        SampleView(str(number), name, "default", "How many?", responses=[response],
                   scores={"em,none": [score]}, facets={"topic": f"\u05d0{number % 2}"})
        for number, (response, score) in enumerate([(failed, None), (ResponseView("7"), 1.0)] * 2)
    ]  # fmt: skip
    view = run_of(lambda: iter(samples), {"benchmark": "b", "run_id": "r"})
    view = dataclasses.replace(view, manifest={**view.manifest, "command": ["eval", "--model", name]})
    opened = Opened(browser, write_report(view, tmp_path / "report.html").path)
    page = opened.ready()
    said = page.locator(".finding p", has_text="failed and are unscored")
    assert f"\u2068{name}\u2069: 2 of 4 requests" in said.inner_text()
    assert page.evaluate(ORDER, "2 of 4"), "the number is on the right of the name"
    page.wait_for_selector(".detail h3")
    assert f"\u2068{name}\u2069 · " in page.locator(".detail header p").inner_text()
    assert "\u2068" not in "".join(page.locator("pre").all_text_contents()), "commands are copied"
    assert opened.logged == []
    opened.context.close()


ORDER = """(number) => {
  const found = [...document.querySelectorAll('.finding p')].find((p) => p.textContent.includes(number));
  const text = found.lastChild;
  const place = (from, length) => {
    const range = document.createRange();
    range.setStart(text, from);
    range.setEnd(text, from + length);
    return range.getBoundingClientRect();
  };
  const at = text.data.indexOf(number);
  return place(at, 1).left >= place(text.data.indexOf('\\u2068') + 1, 4).right;
}"""

LENGTHY = "an-organisation/" + "a" * 104


@pytest.fixture(scope="module")
def lengthy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The three pages of a model whose name is one word of 120 characters, and of a short one."""
    folder = tmp_path_factory.mktemp("lengthy")

    def samples() -> Iterator[SampleView]:
        for model in (LENGTHY, "small"):
            for number in range(4):
                yield SampleView(str(number), model, "default", "How many?", responses=[ResponseView("7")],
                                 scores={"em,none": [number % 2]})  # fmt: skip

    view = run_of(samples, {"benchmark": "b", "run_id": "r"})
    compared = [
        PairView("em,none", 0.5, 0.6, 0.1, -0.1, 0.3, n_items=4, group=f"{name} · x")
        for name in (LENGTHY, "")
    ]
    store = Store(str(folder / "store"))
    record(store, LENGTHY.replace("/", "-"), 1, row(LENGTHY, 0.5))
    record(store, "short", 2, row("small", 0.6))
    return {
        "report": write_report(view, folder / "report.html").path,
        "comparison": write_compare_report(
            view, view, compared, folder / "c.html", names=(LENGTHY, f"{LENGTHY} · 2026-11-24")
        ).path,
        "index": write_index(store, folder / "results"),
    }


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["report", "comparison", "index"])
def test_a_long_name_pushes_no_number_off_the_screen(
    browser: Any, lengthy: dict[str, Path], name: str, width: int
) -> None:
    opened = Opened(browser, lengthy[name], viewport={"width": width, "height": 900})
    page = opened.ready()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    tables = page.locator(".scroll:visible").evaluate_all(
        "all => all.map((box) => [box.ariaLabel, box.scrollWidth, box.clientWidth])"
    )
    wider = 150 if width == 1280 else 900  # a table of many columns is scrolled, within reason
    assert [name for name, inner, outer in tables if inner > outer + wider] == []
    opened.context.close()


LINES = """cell => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  return new Set([...range.getClientRects()].map((box) => box.top)).size;
}"""


def test_a_night_is_one_point_of_its_last_run(browser: Any, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    for number, value in enumerate((0.5, 0.6, 0.4)):
        record(store, f"night-{number}", number, row("a", value))
        record(store, f"rerun-{number}", number, row("a", value + 0.01))
        record(store, f"worse-{number}", number, row("a", 1.0), status="failed")
    record(store, "once", 9, row("b", 0.3, benchmark="products"))
    opened = Opened(browser, write_index(store, tmp_path / "results"))
    page = opened.ready()
    assert page.locator("#curves figcaption").all_inner_texts() == ["sums: exact_match,none"]
    marks = page.locator("#curves circle title").all_text_contents()
    assert [mark.split(",")[0] for mark in marks] == ["rerun-0", "rerun-1", "rerun-2"]
    labels = page.locator("#curves svg[role=img] text").all_text_contents()
    dates = [text for text in labels if "-" in text]
    assert dates == sorted(set(dates))
    opened.context.close()


def test_failed_runs_are_drawn_over_time_where_a_curve_has_no_others(browser: Any, tmp_path: Path) -> None:
    """A pair that always fails does so in runs whose other numbers are sound."""
    store = Store(str(tmp_path / "store"))
    for number, value in enumerate((0.5, 0.6)):
        record(store, f"night-{number}", number, row("a", value))
        record(store, f"lost-{number}", number, row("a", 0.1), row("b", value), status="failed")
    opened = Opened(browser, write_index(store, tmp_path / "results"))
    page = opened.ready()
    marks = page.locator("#curves circle title").all_text_contents()
    assert [mark.split(",")[0] for mark in marks] == ["night-0", "night-1", "lost-0", "lost-1"]
    names = [text.strip() for text in page.locator("#curves .legend li").all_text_contents()]
    assert names == ["a", "b (failed)"]
    opened.context.close()


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_the_table_of_runs_fits_the_window(browser: Any, pages: dict[str, Path], width: int) -> None:
    opened = Opened(browser, pages["index"], viewport={"width": width, "height": 900})
    page = opened.ready()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    inner, outer = page.locator("#runs .scroll").evaluate("box => [box.scrollWidth, box.clientWidth]")
    assert inner <= outer or width < 800
    sections = page.locator("main > section:visible")
    edges = sections.evaluate_all("all => all.map((each) => each.getBoundingClientRect().left)")
    assert len(set(edges)) == 1, "every section begins at one edge"
    opened.context.close()


def test_a_phone_shows_list_then_sample_and_never_scrolls_sideways(browser: Any, recorded: Path) -> None:
    opened = Opened(browser, recorded, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    page = opened.ready()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert not page.locator("#detail").is_visible()
    page.locator(".row").nth(2).tap()
    page.wait_for_selector(".detail .response")
    assert not page.locator("#list").is_visible()
    page.get_by_role("button", name="← List").tap()
    assert page.locator("#list").is_visible()
    opened.context.close()


def test_without_javascript_the_numbers_are_there(browser: Any, recorded: Path) -> None:
    opened = Opened(browser, recorded, java_script_enabled=False)
    text = opened.page.locator("main").inner_text()
    assert "0.5595 ± 0.0137" in text
    assert opened.page.locator(".forest-mark[role=img]").count() == 8
    opened.context.close()


def test_print_keeps_scores_and_the_chosen_sample(opened: Opened) -> None:
    page = opened.ready()
    page.wait_for_selector(".detail .response")
    page.emulate_media(media="print")
    assert page.locator(".detail .response").is_visible()
    assert page.locator("table.results").is_visible()
    assert not page.locator("#controls").is_visible()
    assert not page.locator("#list").is_visible()


def test_on_paper_tables_fit_and_ink_is_dark_on_white(
    browser: Any, pages: dict[str, Path], tmp_path: Path
) -> None:
    account = {
        "cost": 1234.5, "sent": 123_456, "retries": 12, "requests": 123_456, "failed": 7, "cached": 3,
        "prompt_tokens": 123_456_789, "completion_tokens": 12_345_678,
    }  # fmt: skip
    whole = questions(tmp_path)
    costly = {
        **whole.manifest,
        "models": dict.fromkeys((LONG, "small"), account),
        "judges": {"judge": account},
    }
    report = write_report(dataclasses.replace(whole, manifest=costly), tmp_path / "report.html").path
    width = 718  # of a page of A4 between margins of a centimetre
    for path in (report, pages["report"], pages["comparison"], pages["index"]):
        opened = Opened(
            browser,
            path,
            viewport={"width": width, "height": 1000},
            color_scheme="dark",
            reduced_motion="reduce",
        )
        page = opened.ready()
        for theme in (None, "dark"):
            page.evaluate("theme => theme && (document.documentElement.dataset.theme = theme)", theme)
            page.emulate_media(media="print")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path.name
            over = page.locator(".scroll:visible").evaluate_all(
                "all => all.filter((box) => box.scrollWidth > box.clientWidth).map((box) => box.ariaLabel)"
            )
            assert over == []
            style = "(property) => getComputedStyle(document.body)[property]"
            assert page.evaluate(style, "color") == "rgb(0, 0, 0)"
            assert page.evaluate(style, "backgroundColor") == "rgb(255, 255, 255)"
            light = page.evaluate(
                "getComputedStyle(document.documentElement).getPropertyValue('--full').trim()"
            )
            assert light == "#0b6b56", "the colours of marks are those of white paper"
            page.emulate_media(media="screen")
        opened.context.close()


def test_20_000_samples_of_2_kb_are_searched(browser: Any, tmp_path: Path) -> None:
    written = write_report(generated(20_000, size=2000), tmp_path / "large.html")
    assert written.path.stat().st_size < 60_000_000
    opened = Opened(browser, written.path)
    page = opened.ready()
    assert page.locator("#status").inner_text() == "20,000 samples"
    assert opened.search("item-19999") == "1 of 20,000 samples"
    wait_until(page, "document.querySelector('.detail h3').textContent === 'Item item-19999'")
    assert len(page.locator(".detail .response").inner_text()) > 1000
    assert opened.logged == []
    opened.context.close()


def test_a_prediction_that_is_the_whole_response_is_said_to_be(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, write_report(generated(3, size=200), tmp_path / "r.html").path)
    opened.ready().wait_for_selector(".predictions")
    assert "the whole response" in opened.page.locator(".predictions").inner_text()
    opened.context.close()


def test_unscored_and_failed_are_counted_and_reachable(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, write_report(generated(500, size=200, repeats=3), tmp_path / "r.html").path)
    page = opened.ready()
    page.locator("table.results a").first.click()
    wait_until(page, "document.getElementById('status').textContent.startsWith('6 of 500')")
    page.locator(".row").first.click()
    page.wait_for_selector(".detail .note.error")
    assert "HTTP 503 after 6 attempts" in page.locator(".detail").inner_text()
    assert page.locator(".detail .repeat").count() == 3
    page.select_option("#outcome", "")
    page.select_option("#label", "quality:1")
    assert page.locator("#status").inner_text().endswith("of 500 items")
    opened.context.close()


def test_choices_judgements_and_chat_are_shown(browser: Any, tmp_path: Path) -> None:
    sample = SampleView(
        item_id="q1",
        model_name="m",
        prompt_template="p",
        prompt='[{"role": "system", "content": "<b>Be brief</b>"}, {"role": "user", "content": "2 + 2?"}]',
        chat=True,
        references=["4"],
        responses=[ResponseView(None, lls=[-3.5, -0.25], is_greedy=[False, True])],
        filters={"none": [[-3.5, -0.25]]},
        scores={"acc,none": [1.0], "judge,none": [0.5]},
        details={"judge,none": [{"explanation": "Right, but <i>curt</i>."}]},
        choices=["five", "four"],
        gold=[1],
    )
    opened = Opened(
        browser, write_report(run_of(lambda: iter([sample]), {"benchmark": "b"}), tmp_path / "r.html").path
    )
    page = opened.ready()
    page.wait_for_selector(".detail .choices")
    page.locator(".judgement summary").click()
    text = page.locator(".detail").inner_text()
    assert "<b>Be brief</b>" in text
    assert "Right, but <i>curt</i>." in text
    assert page.locator(".choices .best").inner_text().split() == ["✓", "right", "four", "-0.25", "chosen"]
    assert page.locator(".predictions code").inner_text() == "four"
    assert opened.logged == []
    opened.context.close()


def only(view: RunView, model: str, suffix: str = "") -> RunView:
    def samples() -> Iterator[SampleView]:
        for sample in view.samples():
            if sample.model_name == model:
                yield dataclasses.replace(sample, prompt=sample.prompt + suffix)

    return run_of(samples, {"benchmark": "gsm8k", "run_id": model})


def test_a_comparison_shows_what_became_worse_first(browser: Any, tmp_path: Path) -> None:
    base, candidate = only(gsm8k(), "175b_finetuning"), only(gsm8k(), "175b_verification", " Step by step.")
    pair = PairView("exact_match,strict-match", 0.3465, 0.5595, 0.213, 0.187, 0.239, n_items=1319)
    opened = Opened(browser, write_compare_report(base, candidate, [pair], tmp_path / "c.html").path)
    page = opened.ready()
    assert page.locator("#status").inner_text() == "1,319 pairs"
    assert page.locator(".row").first.locator(".chip").first.inner_text() == "✓ → ✗ strict-match"
    page.wait_for_selector(".detail ins")
    assert page.locator(".detail .prompt ins").inner_text() == " Step by step."
    page.select_option("#outcome", "better")
    assert page.locator(".row").first.locator(".chip").first.inner_text() == "✗ → ✓ strict-match"
    assert "of 1,319 pairs" in opened.search("eggs")
    assert opened.logged == []
    opened.context.close()


def test_a_difference_gives_back_both_texts(browser: Any, recorded: Path) -> None:
    draw = random.Random(5)
    pieces = ["eggs", "12", " ", "\n", "=", "is", "."]
    texts = ["".join(draw.choices(pieces, k=draw.randint(0, 14))) for _ in range(2000)]
    page = browser.new_page()
    both = page.evaluate(
        f"""(texts) => {{
            const element = () => null;
            {read_asset("diff.js")}
            return texts.slice(1).map((second, i) => {{
                const steps = difference(texts[i], second);
                const side = (kind) => steps.filter(([k]) => k === ' ' || k === kind).map(([, t]) => t);
                return [side('-').join(''), side('+').join('')];
            }});
        }}""",
        texts,
    )
    assert both == [[first, second] for first, second in itertools.pairwise(texts)]
    page.close()


NAMELESS = """() => {
    const controls = 'button, a[href], select, input, [role=region], [role=listbox], svg[role=img]';
    const named = (node) => node.ariaLabel || node.textContent.trim() || node.labels?.[0]?.textContent.trim();
    const nodes = [...document.querySelectorAll(controls)];
    return nodes.filter((node) => !named(node)).map((node) => node.outerHTML);
}"""

CONTRAST = """(selectors) => {
    const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const rgb = (color) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const ground = (node) => {
        for (let each = node; each; each = each.parentElement) {
            const color = rgb(getComputedStyle(each).backgroundColor);
            if (color[3] === 255) return color;
        }
        return [255, 255, 255, 255];
    };
    const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
        .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    return Object.fromEntries(selectors.map((selector) => {
        const node = document.querySelector(`main ${selector}`) ?? document.querySelector(selector);
        const [a, b] = [light(rgb(getComputedStyle(node).color)), light(ground(node))].sort((x, y) => y - x);
        return [selector, (a + 0.05) / (b + 0.05)];
    }));
}"""


def one_answer(folder: Path, name: str, text: str, **told: Any) -> RunView:
    """A run of one sample."""
    sample = SampleView("q1", "m", "default", "How long?", ["42"], [ResponseView(text)], **told)
    return run_of(lambda: iter([sample]), {"benchmark": "long", "run_id": name})


@pytest.mark.parametrize("piece", ["word ", "x"])
def test_a_megabyte_on_both_sides_is_folded(browser: Any, tmp_path: Path, piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    views = [one_answer(tmp_path, name, f"{name} {text} {name}") for name in ("base", "other")]
    pages = [write_report(views[0], tmp_path / "r.html").path]
    pages.append(write_compare_report(*views, [], tmp_path / "c.html").path)
    for path, times in zip(pages, (1, 2), strict=True):
        opened = Opened(browser, path)
        page = opened.ready()
        buttons = page.get_by_role("button", name="show all 1 MB")
        buttons.first.wait_for()
        assert buttons.count() == times
        assert page.evaluate("document.querySelector('.detail').textContent.length") < 20_000
        buttons.first.click()
        assert page.evaluate("document.querySelector('.detail .response').textContent.length") > 1_000_000
        assert opened.logged == []
        opened.context.close()


def test_a_difference_in_a_megabyte_is_shown_with_what_is_around_it(browser: Any, tmp_path: Path) -> None:
    start, end = "the same " * 50_000, "as before " * 50_000
    views = [one_answer(tmp_path, name, f"{start}{name} {end}") for name in ("base", "other")]
    opened = Opened(browser, write_compare_report(*views, [], tmp_path / "c.html").path)
    page = opened.ready()
    page.wait_for_selector(".detail ins")
    assert [page.locator(f".detail {tag}").inner_text() for tag in ("del", "ins")] == ["base", "other"]
    assert page.locator(".detail").inner_text().count("characters alike") == 4
    opened.context.close()


def test_texts_that_have_nothing_in_common_are_not_compared_for_long(browser: Any) -> None:
    page = browser.new_page()
    found = page.evaluate(f"""() => {{
        const element = () => null;
        {read_asset("diff.js")}
        return difference('ab '.repeat(300000), 'cd '.repeat(300000));
    }}""")
    assert found is None
    page.close()


def test_an_error_of_one_long_word_does_not_widen_the_page(browser: Any, tmp_path: Path) -> None:
    word = "E" * 900
    scored = result("long", "m", "p", "exact_match,none", [1.0, 0.0], 0)
    failed = {**result("long", "m", "p", "bleu,none", [], 0), "status": "failed", "error": word}
    noted = {**scored, "metric": "acc", "error": word}
    view = run_of(lambda: iter(()), {"benchmark": "long", "run_id": "long"}, [failed, noted, scored])
    for width in (390, 1280, 1920):
        opened = Opened(
            browser, write_report(view, tmp_path / "r.html").path, viewport={"width": width, "height": 900}
        )
        opened.page.wait_for_selector("#failed")
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        assert word in opened.page.locator("#failed").inner_text()
        opened.context.close()


def test_what_a_judge_left_is_folded_and_taken_apart(browser: Any, tmp_path: Path) -> None:
    reply = json.dumps({"grades": {"style": 3, "facts": [1, 0]}, "why": "Right, but <i>curt</i>."})
    told = {
        "scores": {"judge,none": [0.5]},
        "filters": {"none": ["42"]},
        "details": {"judge,none": [{"reply": reply}]},
    }
    opened = Opened(browser, write_report(one_answer(tmp_path, "a", "42", **told), tmp_path / "r.html").path)
    page = opened.ready()
    page.wait_for_selector(".judgement")
    assert not page.locator(".judgement").evaluate("node => node.open")
    page.locator(".judgement summary").click()
    said = page.locator(".judgement .words").first.inner_text()
    assert said.split("\n")[-1] == "Right, but <i>curt</i>."
    assert "style\n3" in said
    assert "{" not in said
    opened.context.close()


def test_ticks_of_several_pairs_have_names(browser: Any, tmp_path: Path) -> None:
    pairs = [f"exact_match,filter-{number}" for number in range(6)]
    told = {
        "scores": {pair: [1.0] for pair in pairs},
        "filters": {pair.split(",")[1]: ["42"] for pair in pairs},
    }
    opened = Opened(browser, write_report(one_answer(tmp_path, "a", "42", **told), tmp_path / "r.html").path)
    page = opened.ready()
    chips = page.locator(".row").first.locator(".chip").all_inner_texts()
    assert chips == ["✓ filter-0", "✓ filter-1", "+4"]
    assert page.locator(".row .chip").last.get_attribute("title") == ", ".join(pairs[2:])
    opened.context.close()


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_a_night_of_60_benchmarks_by_3_models_is_a_page(browser: Any, tmp_path: Path, width: int) -> None:
    models = [LONG, "model-1", "model-2"]
    cell = {
        "value": 0.5, "text": "0.5000", "interval": "[0.4000, 0.6000]", "difference": "+0.0100",
        "verdict": "pass", "failed": 0, "link": "a/report.html",
    }  # fmt: skip
    worse = {**cell, "value": 0.25, "verdict": "regression", "failed": 2}
    names = [f"benchmark-{number}" for number in range(60)]
    matrix = [{"benchmark": name, "pair": "acc,none", "cells": [cell, worse, None]} for name in names]
    rows = [
        {"benchmark": name, "model": model, "group": "", "pair": "acc,none", "value": 0.5, "text": "0.5000",
         "interval": "", "base": "0.4900", "difference": "+0.0100", "between": "", "verdict": "pass",
         "reason": "E" * 900}
        for name in names for model in models
    ]  # fmt: skip
    write_night(tmp_path / "suite.html", {
        "title": "nightly", "run": "nightly-1", "said": "S" * 900, "outcome": "regression",
        "baseline": "nightly-0", "failed": [{"name": "broken", "message": "E" * 900}], "evaluated": 179,
        "asked": 10, "kept": 0, "reused": 20, "models": models, "matrix": matrix, "rows": rows, "open": False,
        "notes": ["N" * 900],
    })  # fmt: skip
    opened = Opened(browser, tmp_path / "suite.html", viewport={"width": width, "height": 900})
    page = opened.ready()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(NAMELESS) == []
    assert page.locator(".matrix tbody tr").count() == 60
    assert page.locator(".matrix .chip.none", has_text="regression").count() == 60
    assert page.locator(".matrix td a").first.get_attribute("href") == "a/report.html"
    assert not page.locator("details.table").evaluate("node => node.open")
    assert opened.logged == []
    opened.context.close()


MANY = [f"some_org/a-model-{number:02d}" for number in range(60)]
PAIRS = [f"metric_{number},none" for number in range(6)]


def tops(page: Any, *selectors: str) -> list[float]:
    """Where the first of each of these begins on the page, from its top."""
    return [
        page.locator(selector).first.evaluate("e => e.getBoundingClientRect().top + scrollY")
        for selector in selectors
    ]


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report and a comparison of 60 models by six metrics; of the last one lower is better."""
    folder = tmp_path_factory.mktemp("crowded")

    def samples() -> Iterator[SampleView]:
        for place, model in enumerate(MANY):
            for number in range(3):
                scores: dict[str, list[float | None]] = {pair: [place / 60] for pair in PAIRS}
                yield SampleView(str(number), model, "default", "How many?", responses=[ResponseView("7")],
                                 scores=scores)  # fmt: skip

    view = run_of(samples, {"benchmark": "crowded", "run_id": "crowded"})
    rows = view.results.to_pylist()
    lower = [{**row, "higher_is_better": row["metric"] != "metric_5"} for row in rows]
    view = dataclasses.replace(view, results=pa.Table.from_pylist(lower, schema=RESULTS))
    compared = [
        PairView(pair, 50.0, 50 + place / 6, place / 6, -1.0, 12.0, n_items=3, group=model)
        for pair in PAIRS for place, model in enumerate(MANY)
    ]  # fmt: skip
    return {
        "report": write_report(view, folder / "report.html").path,
        "comparison": write_compare_report(view, view, compared, folder / "c.html").path,
    }


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize(("name", "table"), [("report", ".matrix"), ("comparison", "table")])
def test_of_60_models_the_table_comes_first_and_plots_show_what_a_person_compares(
    browser: Any, crowded: dict[str, Path], name: str, table: str, look: str
) -> None:
    opened = Opened(browser, crowded[name], **LOOKS[look])
    page = opened.ready()
    first, plot = tops(page, table, "figure")
    assert first < plot
    assert plot - first <= page.evaluate("innerHeight"), "a long table has a scroll bar of its own"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(NAMELESS) == []
    shown = page.locator("figure.forest > .forest-rows").evaluate_all(
        "plots => plots.map((plot) => plot.querySelectorAll('.forest-row:not(.forest-axis)').length)"
    )
    assert shown == [12] * 6
    figure = page.locator("figure.forest").first
    assert "of 60" in figure.locator("figcaption").inner_text()
    hidden = figure.locator("details .forest-row:not(.forest-axis)")
    assert hidden.count() == 60
    assert not hidden.first.is_visible()
    figure.get_by_text("show all 60").click()
    assert hidden.first.is_visible()
    assert opened.logged == []
    opened.context.close()


def test_the_plots_of_many_models_show_the_best_ones(browser: Any, crowded: dict[str, Path]) -> None:
    opened = Opened(browser, crowded["report"])
    page = opened.ready()
    plots = page.locator("figure.forest")
    names = [plots.nth(at).locator(".forest-name").first.inner_text() for at in (0, 5)]
    assert names == [MANY[-1], MANY[0]], "of the last metric lower is better"
    assert page.locator(".matrix tbody tr").count() == 60
    assert page.locator(".matrix thead th").count() == 7
    page.locator(".matrix .sort").nth(1).click()
    assert page.locator(".matrix tbody th").first.inner_text() == MANY[-1]
    opened.context.close()


@pytest.mark.parametrize("width", [360, 390, 1280, 1920])
def test_a_night_of_more_models_than_benchmarks_has_a_line_a_model(
    browser: Any, tmp_path: Path, width: int
) -> None:
    cell = {"value": 0.5, "text": "0.5000", "interval": "[0.4000, 0.6000]", "difference": "", "failed": 0}
    cells = [{**cell, "verdict": "pass", "link": f"{model}/report.html"} for model in MANY]
    names = [f"benchmark-{number}" for number in range(6)]
    write_night(tmp_path / "suite.html", {
        "title": "nightly", "run": "nightly-1", "said": "pass", "outcome": "pass",
        "baseline": f"nightly-{'0123456789abcdef' * 2}",
        "failed": [], "evaluated": 360, "asked": 10, "kept": 0, "reused": 20, "models": MANY, "rows": [],
        "open": False,
        "matrix": [{"benchmark": name, "pair": "acc,none", "cells": cells} for name in names], "notes": [],
    })  # fmt: skip
    opened = Opened(browser, tmp_path / "suite.html", viewport={"width": width, "height": 900})
    page = opened.ready()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    over = "boxes => boxes.filter(box => box.scrollWidth > box.clientWidth).length"
    assert page.locator(".facts > div").evaluate_all(over) == 0, "a text runs into the box beside it"
    assert page.locator(".matrix tbody th").all_inner_texts() == MANY
    assert page.locator(".matrix thead th").count() == 7
    links = page.locator(".matrix tbody tr").nth(7).locator("a")
    assert [link.get_attribute("href") for link in links.all()] == [f"{MANY[7]}/report.html"] * 6
    assert page.locator(".scroll.tall").first.bounding_box()["height"] <= 900
    opened.context.close()


TEXT_LINES = """(node) => {
    const range = document.createRange();
    range.selectNodeContents(node);
    return [...range.getClientRects()].map((line) => [line.left, line.top, line.right, line.bottom]);
}"""
"""Where the lines of an element's text are."""


@pytest.mark.parametrize("name", READABLE)
def test_the_title_and_the_button_of_the_theme_never_touch(
    browser: Any, pages: dict[str, Path], name: str
) -> None:
    opened = Opened(browser, pages[name], viewport={"width": 390, "height": 800})
    page = opened.ready()
    for title in ("gsm8k_recorded", "a_benchmark_of_a_name", "A name of several words that go on"):
        page.evaluate("title => { document.querySelector('h1').textContent = title; }", title)
        button = page.locator("#theme").bounding_box()
        for other in ("h1", ".brand", ".run"):
            for left, top, right, bottom in page.locator(f".masthead {other}").evaluate(TEXT_LINES):
                beside = right + 8 <= button["x"] or left >= button["x"] + button["width"]
                above = bottom <= button["y"] or top >= button["y"] + button["height"]
                assert beside or above, (other, title)
    opened.context.close()


def test_a_row_of_the_list_says_whose_answer_it_is_and_what_was_asked(
    browser: Any, pages: dict[str, Path]
) -> None:
    for name, width in (("report", 390), ("report", 1280), ("comparison", 1280)):
        opened = Opened(browser, pages[name], viewport={"width": width, "height": 900})
        page = opened.ready()
        row = page.locator(".row").nth(2)
        wait_until(page, "document.querySelectorAll('.row-asked')[2].textContent.startsWith('2')")
        assert row.locator(".row-asked").inner_text() == "2:", "without what all questions have in common"
        if name == "report":
            page.select_option("[data-facet=model_name]", "small")
            model = page.locator(".row").nth(2).locator(".row-head .dim")
            assert model.inner_text() == "small"
            assert model.evaluate("one => one.scrollWidth <= one.clientWidth")
        within = (
            "one => one.getBoundingClientRect().bottom <= one.closest('.row').getBoundingClientRect().bottom"
        )
        assert all(part.evaluate(within) for part in row.locator("*").all())
        opened.context.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_a_row_of_the_list_shows_the_line_of_a_file_of_any_name(
    browser: Any, tmp_path: Path, width: int
) -> None:
    name = "questions-of-a-file-with-a-very-long-name-for-such-a-list.jsonl"
    (tmp_path / name).write_text('{"question": 0}\n' * 3)
    view = questions(tmp_path)
    view.manifest["config"]["dataset"]["path"] = name
    report = write_report(view, tmp_path / "r.html").path
    opened = Opened(browser, report, viewport={"width": width, "height": 900})
    page = opened.ready()
    row = page.locator(".row").nth(2)
    assert row.locator("b").text_content() == f"{name}:3"
    ends = "one => one.getBoundingClientRect().right"
    line, whole = row.locator(".line"), row.locator("b").evaluate(ends)
    assert line.inner_text() == ":3"
    assert line.evaluate(ends) <= whole + 1, "it is not cut off"
    assert row.locator("b").get_attribute("title") == f"{name}:3"
    opened.context.close()


def test_the_place_of_the_chosen_sample_is_that_in_the_list_as_it_is_narrowed(opened: Opened) -> None:
    page = opened.ready()
    found = opened.search("eggs").partition(" of ")[0]
    wait_until(page, f"document.querySelector('.steps').textContent.endsWith('1 of {found}')")
    last = int(found.replace(",", ""))
    assert 1 < last < 5_276


def test_previous_and_next_go_through_the_list(browser: Any, pages: dict[str, Path]) -> None:
    opened = Opened(browser, pages["report"], viewport={"width": 390, "height": 900})
    page = opened.ready()
    page.locator(".row").first.click()
    wait_until(page, "document.querySelector('.steps .dim')?.textContent === '1 of 80'")
    assert page.get_by_role("button", name="Previous").is_disabled()
    page.get_by_role("button", name="Next").click()
    wait_until(page, "document.querySelector('.steps .dim').textContent === '2 of 80'")
    assert page.locator(".detail h3").inner_text() == "Item questions.jsonl:2"
    assert page.evaluate("document.activeElement.textContent") == "Next"
    page.get_by_role("button", name="Previous").click()
    wait_until(page, "document.querySelector('.steps .dim').textContent === '1 of 80'")
    opened.context.close()
