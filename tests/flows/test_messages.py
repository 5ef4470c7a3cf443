"""Chats with pictures and tools, the whole way; what can't be shown is refused before anything is asked."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

from flows.config.load import load_config
from flows.config.schema import RunOptions
from flows.plan.build import make_plan
from metrics.errors import ConfigError
from tasks.models.demo.answering import shapes

PROJECT = Path(__file__).resolve().parents[2]
EXAMPLES = PROJECT / "deployments" / "benchmarks" / "messages"
CONFIG = """\
name: pictures
dataset: data/items.jsonl
messages:
  - {role: developer, content: Be brief.}
  - role: user
    content: [{text: How many squares?}, {image: "{{image}}", detail: low}]
target: "{{answer}}"
metric_list: [exact_match]
models: [{name: demo, type: demo}]
"""


def squares(path: Path, count: int, size: int = 120, form: str = "PNG") -> None:
    picture = Image.new("RGB", (size, size), "white")
    draw = ImageDraw.Draw(picture)
    for place in random.Random(count).sample(range(16), count):
        left, top = 5 + 28 * (place % 4), 5 + 28 * (place // 4)
        draw.rectangle([left, top, left + 15, top + 15], fill="darkred")
    picture.save(path, format=form)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A config in one folder, its items and pictures in another below it: relative to the data."""
    (tmp_path / "data" / "img").mkdir(parents=True)
    rows = []
    for number, (count, form) in enumerate([(3, "PNG"), (9, "JPEG"), (1, "WEBP")]):
        name = f"img/{number}.{form.lower()}"
        squares(tmp_path / "data" / name, count, form=form)
        rows.append({"id": f"i{number}", "image": name, "answer": str(count)})
    (tmp_path / "data" / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "pictures.yaml").write_text(CONFIG)
    return tmp_path


def test_the_embedded_server_counts_by_the_pixels(tmp_path: Path) -> None:
    for count in (0, 1, 5, 16):
        squares(tmp_path / "p.png", count)
        assert shapes((tmp_path / "p.png").read_bytes()) == count


def test_pictures_are_asked_about_and_kept_once_by_their_content(pictures: Path, evaluate: Any) -> None:
    ran = evaluate(pictures / "pictures.yaml", "--json")
    assert ran.code == 0, (ran.err, ran.out[-3000:])
    assert ran.value("exact_match,none") == 1.0
    kept = sorted(path.name for path in (pictures / "store" / "media").iterdir())
    assert len(kept) == 3
    rows = [json.loads(line) for line in (pictures / "out" / "responses.jsonl").read_text().splitlines()]
    assert [row["response"] for row in rows] == ["3", "9", "1"]
    assert all("base64" not in row["prompt"] for row in rows)
    assert {digest for row in rows for digest in kept if f"sha256:{digest}" in row["prompt"]} == set(kept)
    # The same pixels again ask nothing; another picture under the same name is asked about.
    assert evaluate(pictures / "pictures.yaml", "--json").document["requests"]["sent"] == 0
    squares(pictures / "data" / "img" / "0.png", 4)
    again = evaluate(pictures / "pictures.yaml", "--json")
    assert again.document["requests"] == {"sent": 1, "cached": 2, "failed": 0}
    assert again.value("exact_match,none") == pytest.approx(2 / 3)


def test_tools_are_called_and_compared(evaluate: Any, tmp_path: Path) -> None:
    ran = evaluate(EXAMPLES / "tools.yaml", "--json")
    assert ran.code == 0, (ran.err, ran.out[-3000:])
    values = {name: ran.value(f"{name},none") for name in ("tool_match", "tool_use_rate", "refusal")}
    assert values == {"tool_match": 1.0, "tool_use_rate": 0.75, "refusal": 0.0}
    rows = [json.loads(line) for line in (tmp_path / "out" / "responses.jsonl").read_text().splitlines()]
    assert rows[0]["tool_calls"] == [{"name": "weather", "arguments": {"city": "Paris", "days": 3}}]
    assert "tool_calls" not in rows[3]
    recorded = [{"name": "demo", "type": "replay", "config": {"path": str(tmp_path / "out/responses.jsonl")}}]
    again = evaluate(EXAMPLES / "tools.yaml", "--json", "--set", f"models={json.dumps(recorded)}",
                     "--output", tmp_path / "again")  # fmt: skip
    assert again.value("tool_match,none") == 1.0, again.err


def spoiled(folder: Path, how: str) -> None:
    picture = folder / "data" / "img" / "1.jpeg"
    if how == "gone":
        picture.unlink()
    elif how == "cut":
        picture.write_bytes(picture.read_bytes()[:-200])
    elif how == "text":
        picture.write_text("no picture")
    elif how == "bmp":
        squares(picture, 2, form="BMP")
    elif how == "heavy":
        picture.write_bytes(picture.read_bytes() + bytes(30_000_000))
    elif how == "wide":
        Image.new("1", (40_000, 4_000)).save(picture, format="PNG")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("gone", "image 'img/1.jpeg' is not there"),
        ("cut", "'1.jpeg' is no image that can be read"),
        ("text", "'1.jpeg' is no image that can be read"),
        ("bmp", "'1.jpeg' is BMP; endpoints take PNG, JPEG, GIF and WebP"),
        ("heavy", "'1.jpeg' is too large: 30.0 MB, and at most 20 MB are sent"),
        ("wide", "'1.jpeg' is too large: 40000 × 4000 pixels"),
    ],
)
def test_a_picture_that_cannot_be_shown_is_refused_with_its_line(pictures: Path, how: str, said: str) -> None:
    spoiled(pictures, how)
    with pytest.raises(ConfigError) as refused:
        make_plan(load_config(pictures / "pictures.yaml"), RunOptions())
    assert "items.jsonl:2: item 'i1': " in str(refused.value)
    assert said in str(refused.value)


def test_the_command_line_refuses_it_before_anything_is_asked(pictures: Path, evaluate: Any) -> None:
    spoiled(pictures, "gone")
    ran = evaluate(pictures / "pictures.yaml", "--json")
    assert (ran.code, (pictures / "store" / "answers").exists()) == (2, False)
    assert "items.jsonl:2" in ran.err


MESSAGES = [
    {"role": "user", "content": "Weather in Paris?"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "a", "content": "Rain"},
    {"role": "user", "content": [{"type": "text", "text": "And here?"},
                                 {"type": "image_url", "image_url": {"url": "img/0.png"}}]},
]  # fmt: skip


def test_an_item_may_hold_its_messages(pictures: Path) -> None:
    (pictures / "data" / "items.jsonl").write_text(
        json.dumps({"id": "m", "messages": MESSAGES, "answer": "0"}) + "\n"
    )
    plan = make_plan(load_config(pictures / "pictures.yaml", ['messages="{{messages}}"']), RunOptions())
    from tasks.benchmarks.open import open_benchmark

    benchmark = open_benchmark(plan.load.setup.benchmark)
    (found,) = benchmark.render("default", benchmark.items())
    asked = json.loads(found.prompts[0])
    assert asked[:3] == MESSAGES[:3]
    assert asked[3]["content"][1]["image_url"]["url"] == found.media[0].reference


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "expected a list of messages"),
        ([{"role": "robot", "content": "x"}], "message 0"),
        ([{"role": "user"}], "message 0 (user) has no content"),
        ([{"role": "tool", "content": "x"}], "has role tool and no tool_call_id"),
        ([{"role": "user", "content": [{"type": "video"}]}], "a part of message 0"),
    ],
)
def test_what_is_no_message_is_refused_with_its_line(pictures: Path, messages: Any, said: str) -> None:
    (pictures / "data" / "items.jsonl").write_text(json.dumps({"id": "m", "messages": messages}) + "\n")
    with pytest.raises(ConfigError) as refused:
        make_plan(load_config(pictures / "pictures.yaml", ['messages="{{messages}}"']), RunOptions())
    assert "items.jsonl:1" in str(refused.value)
    assert said in str(refused.value)
