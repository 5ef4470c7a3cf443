"""The report as a file: what is in it, what is escaped, what is left out and how that is said."""

import base64
import dataclasses
import gzip
import json
import pickle
import random
import re
import tracemalloc
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tasks.reporting.diagnostics.findings import SHOWN_OF_A_KIND, Diagnostic, grouped
from tasks.reporting.page import SampleIndex, environment, inline_json, isolated, read_asset
from tasks.reporting.report import FirstPass, PageLimits, write_report
from tasks.reporting.view import LabelView, ResponseView, RunView, SampleView
from tasks.store.home import FileUnwritable
from tasks.store.keys import json_bytes
from tasks.store.schemas import RESULTS
from tests.tasks.reporting.report_recordings import HOSTILE, generated, result, run_of


def sample(item_id: str = "1", text: str | None = "The answer is 4", **fields: Any) -> SampleView:
    given = {
        "model_name": "m",
        "prompt_template": "p",
        "prompt": "2 + 2?",
        "references": ["4"],
        "responses": [ResponseView(text)],
        "filters": {"number": ["4"]},
        "scores": {"exact_match,number": [1.0]},
    }
    return SampleView(item_id=item_id, **(given | fields))


def run(*samples: SampleView, **manifest: Any) -> RunView:
    return run_of(lambda: iter(samples), {"benchmark": "sums", **manifest})


def failed_row(**fields: Any) -> dict[str, Any]:
    row = result("sums", "m", "p", "bleu,none", [], 0)
    return row | {"status": "failed", "error": "MetricError: row 3 is not text", "n_items": 0} | fields


def test_the_head_counts_each_sample_without_a_score_once_a_pair(tmp_path: Path) -> None:
    def rows(pair: str, unscored: dict[str, int], **fields: Any) -> Iterator[dict[str, Any]]:
        for topic, count in unscored.items():
            facets = {"model_name": "m"} | ({"topic": topic} if topic else {})
            yield result("sums", "m", "p", pair, [1.0], count) | {"facets": json.dumps(facets)} | fields

    none = {"value": None, "status": "failed"}
    extra = [
        *rows("exact_match,number", {"": 3, "a": 2, "b": 1}),
        *rows("exact_match,number", {"": 3, "a": 2, "b": 1}, reduction="pass@2"),
        *rows("judge,number", {"a": 4}),
        *rows("judge,number", {"b": 8}, **none),
    ]
    twice: dict[str, Any] = {
        "responses": [ResponseView("4")] * 2,
        "filters": {},
        "scores": {"exact_match,number": [None] * 2},
    }
    view = dataclasses.replace(
        run(sample(facets={"topic": "a"}, **twice)), results=pa.Table.from_pylist(extra, schema=RESULTS)
    )
    page = write_report(view, tmp_path / "r.html").path.read_text()
    assert re.search(r"<dt>unscored</dt>\s*<dd>(?:<a[^>]*>)?15<", page)
    links = re.findall(r'href="(#samples\?pair=exact_match[^"]*)"', page)
    assert any(
        link.endswith("outcome=unscored&amp;f.model_name=m&amp;f.prompt_template=p&amp;f.topic=a")
        for link in links
    )


def test_answers_that_ended_at_the_limit_are_not_called_cut_off_beside_those_that_never_began(
    tmp_path: Path,
) -> None:
    begun, never = ResponseView("4", finish_reason="length"), ResponseView(None, "cut_off", None, "length")
    samples = sample(responses=[begun]), sample("2", responses=[never])
    counted = result("sums", "m", "p", "exact_match,number", [1.0, 0.0], 0) | {"n_cut_off": 1}
    view = run_of(lambda: iter(samples), {"benchmark": "sums"}, [counted])
    page = write_report(view, tmp_path / "r.html").path.read_text()
    scores, usage = page[: page.index('id="usage"')], page[page.index('id="usage"') :]
    assert ">Cut off</th>" in scores
    assert ">Cut off</th>" not in usage
    assert ">At the limit</th>" in usage


def test_facets_called_as_the_page_calls_model_and_prompt_stand_beside_these(tmp_path: Path) -> None:
    facets = {"Model": "small", "Prompt": "p2"}
    unscored = result("sums", "m", "p", "exact_match,number", [1.0], 1)
    unscored["facets"] = json.dumps({"model_name": "m", "prompt_template": "p", **facets})
    lost = sample(facets=facets, scores={"exact_match,number": [None]})
    view = run_of(lambda: iter([lost]), {"benchmark": "sums"}, [unscored])
    page = written(view, tmp_path)
    held = {"model_name": "m", "prompt_template": "p", **facets}
    assert {name: found["values"] for name, found in page.index()["facets"].items()} == {
        name: [value] for name, value in held.items()
    }
    (data,) = re.findall(r'id="results-data">([^<]*)<', page.html)
    assert json.loads(data)["rows"][-1]["facets"] == held
    assert "f.model_name=m&amp;f.prompt_template=p&amp;f.Model=small&amp;f.Prompt=p2" in page.html


def test_a_sample_without_a_facets_value_is_listed_where_its_group_links_to(tmp_path: Path) -> None:
    unscored = result("sums", "m", "p", "exact_match,number", [1.0], 1)
    unscored["facets"] = json.dumps({"model_name": "m", "prompt_template": "p", "level": "unknown"})
    lost = sample(facets={"level": None}, scores={"exact_match,number": [None]})
    view = run_of(lambda: iter([lost]), {"benchmark": "sums"}, [unscored])
    page = written(view, tmp_path)
    assert "f.level=unknown" in page.html
    assert page.index()["facets"]["level"] == {"values": ["unknown"], "codes": [0]}


class Page(HTMLParser):
    """A page's elements, and its packed data."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.html = path.read_text()
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def packed(self, name: str) -> list[Any]:
        found = re.findall(rf'data-name="{name}">([^<]*)</script>', self.html)
        return [json.loads(gzip.decompress(base64.b64decode(text))) for text in found]

    def samples(self) -> list[Any]:
        return [sample for block in self.packed("run") for sample in block["samples"]]

    def questions(self) -> list[Any]:
        return [question for block in self.packed("run") for question in block["questions"]]

    def index(self) -> Any:
        return self.packed("run-index")[0]


def written(view: RunView, tmp_path: Path, limits: PageLimits | None = None) -> Page:
    return Page(write_report(view, tmp_path / "report.html", limits).path)


def test_every_text_of_a_sample_is_in_the_page(tmp_path: Path) -> None:
    view = run(
        sample(
            text="The answer is 4",
            responses=[ResponseView("The answer is 4", reasoning="two and two", finish_reason="stop")],
            details={"exact_match,number": [{"why": "equal"}]},
            labels=[LabelView("quality", 0, True, 0.75, details={"judge": "good"})],
            facets={"item.subject": "sums"},
        )
    )
    page = written(view, tmp_path)
    (record,) = page.samples()
    assert record["responses"] == [
        {"text": "The answer is 4", "status": "ok", "finish": "stop", "reasoning": "two and two"}
    ]
    assert record["filters"] == {"number": ["4"]}
    assert record["spans"] == {"number": [[14, 15]]}
    assert record["details"] == {"exact_match,number": [{"why": "equal"}]}
    assert record["labels"][0]["details"] == {"judge": "good"}
    assert page.packed("run")[0]["questions"][0]["references"] == ["4"]
    assert page.index()["facets"]["item.subject"] == {"values": ["sums"], "codes": [0]}


def test_the_page_can_ask_no_network_and_run_nothing_else(tmp_path: Path) -> None:
    page = written(run(sample()), tmp_path)
    policy = next(
        attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert not [
        attrs for _, attrs in page.tags if any(name.startswith("on") or name == "style" for name in attrs)
    ]
    assert not [attrs for tag, attrs in page.tags if "src" in attrs or tag == "link"]


@pytest.mark.parametrize(
    "view",
    [
        run(sample(text=HOSTILE, item_id=HOSTILE, prompt=HOSTILE, references=[HOSTILE])),
        run(sample(model_name=HOSTILE, prompt_template=HOSTILE, filters={HOSTILE: [HOSTILE]})),
        run(sample(), run_name=HOSTILE, config={"note": HOSTILE}, versions={HOSTILE: HOSTILE}),
        run_of(lambda: iter([sample()]), {"benchmark": HOSTILE}, [failed_row(error=HOSTILE, metric=HOSTILE)]),
        run(
            sample(
                responses=[ResponseView(None, "infra_error", HOSTILE)], scores={"exact_match,number": [None]}
            )
        ),
    ],
    ids=["sample", "names", "manifest", "failed pair", "request error"],
)
def test_markup_in_any_text_is_escaped(view: RunView, tmp_path: Path) -> None:
    page = written(view, tmp_path)
    assert "img" not in [tag for tag, _ in page.tags]
    assert [attrs.get("type") for tag, attrs in page.tags if tag == "script"] == [
        *["application/octet-stream"] * 2,
        "application/json",
        None,
    ]


def test_inline_json_holds_no_character_that_markup_is_made_of() -> None:
    text = inline_json({"</script>": "<!--<script>&"})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"</script>": "<!--<script>&"}


class Mute:
    def __str__(self) -> str:
        raise LookupError


ITSELF: dict[str, Any] = {}
ITSELF["self"] = ITSELF


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), None),
        (float("inf"), None),
        ("\ud800 alone", "? alone"),
        (2**70, str(2**70)),
        ({1: [("a", {2})]}, {"1": [["a", "{2}"]]}),
        (
            {(1, 2): {2**70: None, None: 9**9**4}},
            {"(1, 2)": {str(2**70): None, "null": "a value of type int"}},
        ),
        (Mute(), "a value of type Mute"),
        (ITSELF, {"self": "{'self': {...}}"}),
    ],
)
def test_what_json_lacks_is_written_as_something_it_has(value: Any, expected: Any) -> None:
    assert json.loads(json_bytes(value)) == expected


def test_scores_without_a_json_number_are_not_taken_for_unscored(tmp_path: Path) -> None:
    view = run(
        sample(scores={"ppl,number": [float("inf")], "bleu,number": [float("nan")], "em,number": [None]})
    )
    page = written(view, tmp_path)
    assert page.samples()[0]["scores"] == {"ppl,number": ["inf"], "bleu,number": ["nan"], "em,number": [None]}
    assert page.index()["unscored"] == {"ppl,number": [0], "bleu,number": [0], "em,number": [1]}


def test_failed_pairs_stand_last_with_reason_and_command(tmp_path: Path) -> None:
    view = run_of(
        lambda: iter([sample()]), {"benchmark": "sums", "command": ["python", "-m", "flows.eval", "a b.yaml"]}
    )
    view = dataclasses.replace(
        view, results=pa.concat_tables([pa.Table.from_pylist([failed_row()], RESULTS), view.results])
    )
    text = written(view, tmp_path).text
    assert "MetricError: row 3 is not text" in text
    assert text.count("python -m flows.eval 'a b.yaml'") == 1, "one command, whatever failed"
    table = text[text.index("Press a heading") : text.index("Failed pairs", text.index("Press a heading"))]
    assert table.index("exact_match") < table.index("bleu")


def test_a_run_without_samples_or_results_is_a_page_that_says_so(tmp_path: Path) -> None:
    view = RunView({}, RESULTS.empty_table(), lambda: iter(()))
    assert "This run has no results." in written(view, tmp_path).text


def test_prompts_shared_by_models_are_stored_once(tmp_path: Path) -> None:
    page = written(
        run(sample(model_name="a"), sample(model_name="b"), sample("2", prompt="3 + 3?")), tmp_path
    )
    assert [question["prompt"] for block in page.packed("run") for question in block["questions"]] == [
        "2 + 2?",
        "3 + 3?",
    ]
    assert page.index()["question"] == [0, 0, 1]


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    first = write_report(generated(300, 100), tmp_path / "a.html").path.read_bytes()
    assert write_report(generated(300, 100), tmp_path / "b.html").path.read_bytes() == first


@pytest.mark.parametrize("samples", [20_000, 150])
def test_passes_over_parts_of_a_run_give_the_bytes_of_one_pass(tmp_path: Path, samples: int) -> None:
    view, limits = generated(300, 100), PageLimits(samples=samples)
    alone = write_report(view, tmp_path / "a.html", limits)
    parts = []
    for place, sample in enumerate(view.samples()):
        if place % 100 == 0:
            parts.append(FirstPass(view, limits))
        parts[-1].add(sample)
    first, *others = (pickle.loads(pickle.dumps(part)) for part in parts)
    for other in others:
        first.merge(other)
    merged = write_report(view, tmp_path / "b.html", limits, first=first)
    assert merged.path.read_bytes() == alone.path.read_bytes()
    assert (merged.n_samples, merged.n_shown) == (alone.n_samples, alone.n_shown)


def test_an_interrupted_report_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    passes = []

    def samples() -> Iterator[SampleView]:
        passes.append(1)
        yield sample()
        if len(passes) > 1:
            raise OSError("disk gone")

    view = dataclasses.replace(run(sample()), samples=samples)
    with pytest.raises(FileUnwritable, match="disk gone"):
        write_report(view, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_memory_does_not_grow_with_the_run(tmp_path: Path) -> None:
    text = "word " * 4000

    def peak(items: int) -> int:
        def samples() -> Iterator[SampleView]:
            for number in range(items):
                yield sample(str(number), text=f"{number} {text}")

        view = dataclasses.replace(run(sample()), samples=samples)
        tracemalloc.start()
        write_report(view, tmp_path / "report.html", PageLimits(samples=50))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(1)  # what the first page of a process imports and compiles is no sample's
    growth = (peak(1500) - peak(300)) / 1200
    assert growth < len(text) / 10, "an item that is not shown leaves less than a tenth of its text"


def test_long_texts_are_shown_in_part_where_the_file_would_grow_too_large(tmp_path: Path) -> None:
    limits = PageLimits(file_bytes=400_000)
    page = written(generated(200, size=20_000), tmp_path, limits)
    assert len(page.html) < 600_000
    assert page.index()["shortened"] > 0
    assert "characters left out" in page.samples()[0]["responses"][0]["text"]
    assert len(page.samples()) == 200


@pytest.mark.parametrize(
    "place", ["chat", "references", "choices", "details", "reasons", "labels", "transcript", "calls", "error"]
)
def test_a_long_text_is_shown_in_part_wherever_it_stands(tmp_path: Path, place: str) -> None:
    def long_sample(number: int) -> SampleView:
        draw = random.Random(number)
        text = " ".join(f"{draw.getrandbits(32):x}" for _ in range(2_500))
        messages = [{"role": "system", "content": "short"}, {"role": "user", "content": [{"text": text}]}]
        chat = json.dumps(messages)
        call = {"name": "look", "arguments": {"up": text}}
        fields: dict[str, dict[str, Any]] = {
            "chat": {"prompt": chat, "chat": True},
            "references": {"references": [{"answer": text}]},
            "choices": {"choices": [text]},
            "details": {"details": {"exact_match,number": [{"judge": [text]}]}},
            "reasons": {"reasons": {"exact_match,number": [text]}},
            "labels": {"labels": [LabelView("good", 0, True, details={"judge": text})]},
            "transcript": {"responses": [ResponseView("4", transcript=chat)]},
            "calls": {"responses": [ResponseView("4", tool_calls=[call])]},
            "error": {"responses": [ResponseView(None, "infra_error", text)]},
        }
        return sample(str(number), **fields[place])

    page = written(run(*map(long_sample, range(100))), tmp_path, PageLimits(file_bytes=200_000))
    assert len(page.html) < 500_000
    assert page.index()["shortened"] == 100
    shown = json.dumps([page.samples(), page.questions()])
    assert shown.count("characters left out") == 100
    if place in ("chat", "transcript"):
        first = page.samples()[0]["responses"][0]
        short, long = json.loads(first.get("transcript") or page.questions()[0]["prompt"])
        assert short == {"role": "system", "content": "short"}
        assert "characters left out" in long["content"][0]["text"]


def test_of_many_findings_of_a_kind_a_few_stand_open() -> None:
    many = [Diagnostic("truncated", "warning", f"model {n} was cut off", n) for n in range(1, 6)]
    plots: Any = environment().get_template("plots.html").module
    shown = str(plots.findings(grouped(many), SHOWN_OF_A_KIND, lambda example: "#"))
    opened, _, folded = shown.partition("<details>")
    assert re.findall(r"model \d", opened) == ["model 5", "model 4"]
    assert "3 more of this kind" in folded
    assert re.findall(r"model \d", folded) == ["model 3", "model 2", "model 1"]


def test_a_table_that_repeats_the_plots_is_folded_until_it_says_more(tmp_path: Path) -> None:
    plain = [result("sums", f"m{number}", "p", "exact_match,none", [1.0, 0.0], 0) for number in range(24)]
    for rows, opened in ((plain, False), (plain[:6], True), ([*plain, failed_row()], True)):
        view = run_of(lambda: iter(()), {"benchmark": "sums"}, rows)
        page = Page(write_report(view, tmp_path / "r.html").path)
        assert [("open" in about) for tag, about in page.tags if about.get("class") == "table"] == [opened]
        assert f"{len(rows)} rows as a table" in page.text


def test_unscored_is_counted_only_where_something_was_scored(tmp_path: Path) -> None:
    answered = sample(scores={}, filters={})
    pages = [Page(write_report(run(one), tmp_path / "r.html").path) for one in (answered, sample())]
    assert ["over all pairs" in page.text for page in pages] == [False, True]


def test_the_unscored_samples_of_a_label_are_those_that_its_row_counts() -> None:
    """A method may say more of a response than whether it passed, and nothing else."""
    index = SampleIndex()
    for label in (
        LabelView("right", 0, True),
        LabelView("right", 0, details={"custom_fields": {"applies": False}}),
        LabelView("right", 0, status="unscored"),
        LabelView("right", 0, score=0.3),
    ):
        index.add(SampleView("a", "m", "p", "q", responses=[ResponseView("x")], labels=[label]), 0)
    assert index.record([4], 0)["label_unscored"] == {"right": [0, 1, 1, 0]}


def test_a_group_whose_facet_is_empty_has_a_name_in_the_table(tmp_path: Path) -> None:
    rows = [
        result("b", "m", "p", "em,none", [1.0], 1) | {"facets": json.dumps({"topic": topic})}
        for topic in ("", "x")
    ]
    view = dataclasses.replace(
        run_of(lambda: iter(()), {"benchmark": "b"}), results=pa.Table.from_pylist(rows, schema=RESULTS)
    )
    page = write_report(view, tmp_path / "report.html").path.read_text()
    assert "<td><bdi>(empty)</bdi></td>" in page
    assert '"topic":"(empty)"' in page, "the table of facets has it by this name, too"


def test_a_count_leads_to_samples_only_where_the_page_can_show_just_these(tmp_path: Path) -> None:
    """What came with an answer, as its temperature, tells the repeats of an item apart: no item has it."""
    given: dict[str, Any] = {"responses": [ResponseView("x")] * 2, "scores": {"em,none": [1.0, None]}}
    samples = [SampleView(item, "m", "p", "q", facets={"topic": item}, **given) for item in "ab"]
    rows = [
        result("b", "m", "p", "em,none", [1.0], 1) | {"facets": json.dumps(facets), "n_unscored": count}
        for facets, count in (({"topic": "a"}, 1), ({"metadata.temp": 0.7}, 2))
    ]
    view = dataclasses.replace(
        run_of(lambda: iter(samples), {"benchmark": "b"}), results=pa.Table.from_pylist(rows, schema=RESULTS)
    )
    page = write_report(view, tmp_path / "report.html").path.read_text()
    assert page.count('f.topic=a">1</a>') == 1
    assert "metadata.temp=" not in page
    assert re.search(r'<td class="num" data-sort="2">2</td>', page)


def test_page_and_script_hold_the_same_names_apart() -> None:
    (told,) = re.findall(r"const isolated = \(name\) => \(/(.+?)/\.test", read_asset("dom.js"))
    by_script = re.compile(told)
    letters = [chr(code) for code in range(0x10000) if not 0xD800 <= code < 0xE000 and chr(code).isalpha()]
    assert [one for one in letters if isolated(one, [one]) != one] == list(filter(by_script.search, letters))
    assert isolated("7 of \u0645\u0648 7b", ["\u0645\u0648 7b"]) == "7 of \u2068\u0645\u0648 7b\u2069"
