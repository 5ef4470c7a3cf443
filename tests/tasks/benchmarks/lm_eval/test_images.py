"""Definitions that show images: as columns, lists and functions, in the harness's chat form."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from flows.config.load import load_config
from flows.config.schema import RunOptions
from flows.plan.build import make_plan
from metrics.errors import ConfigError
from tasks.benchmarks.open import open_benchmark
from tasks.messages.media import sent_messages

TASK = """\
task: charts
dataset_path: parquet
dataset_kwargs: {data_files: {test: charts.parquet}}
test_split: test
output_type: generate_until
doc_to_image: IMAGES
doc_to_text: "<image>{{query}}\\nAnswer:"
doc_to_target: label
metric_list: [{metric: exact_match}]
"""
FUNCTIONS = '''
def shown(doc):
    """As MMMU has it: images of the document, some of them twice, each a Pillow image."""
    assert doc["image"].mode == "RGB"
    return [doc["image"], doc["second"], doc["image"]]
'''
MODELS = "models=[{name: m, config: {model: m, base_url: 'http://localhost:1/v1'}}]"


def png(colour: str) -> bytes:
    sink = io.BytesIO()
    Image.new("RGB", (4, 3), colour).save(sink, format="PNG")
    return sink.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [
        {
            "query": f"Which colour? {colour}", "label": colour,
            "image": {"bytes": png(colour), "path": None}, "second": {"bytes": png("white"), "path": None},
            "file": f"{colour}.png",
        }
        for colour in ("red", "blue")
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "charts.parquet")
    for colour in ("red", "blue"):
        (tmp_path / f"{colour}.png").write_bytes(png(colour))
    (tmp_path / "utils.py").write_text(FUNCTIONS)
    return tmp_path


def rendered(folder: Path, images: str) -> list[Any]:
    (folder / "charts.yaml").write_text(TASK.replace("IMAGES", images))
    plan = make_plan(load_config(folder / "charts.yaml", [MODELS]), RunOptions())
    benchmark = open_benchmark(plan.load.setup.benchmark)
    return list(benchmark.render("default", benchmark.items()))


@pytest.mark.parametrize(
    ("images", "shown"),
    [
        ("image", ["red"]),
        ("[image, second]", ["red", "white"]),
        ("!function utils.shown", ["red", "white", "red"]),
        ("file", ["red"]),
        ("\"['{{file}}']\"", ["red"]),
    ],
)
def test_images_stand_before_the_text_whose_marks_stay(folder: Path, images: str, shown: list[str]) -> None:
    first = rendered(folder, images)[0]
    (message,) = json.loads(first.prompts[0])
    *parts, text = message["content"]
    assert (first.chat, message["role"]) == (True, "user")
    assert text == {"type": "text", "text": "<image>Which colour? red\nAnswer:"}
    kept = {media.digest: media.read() for media in first.media}
    (sent,) = sent_messages([message], kept.__getitem__)
    urls = [part["image_url"]["url"] for part in sent["content"][:-1]]
    # What lm-evaluation-harness sends: each image as PNG, in this order, detail auto.
    assert urls == [f"data:image/png;base64,{base64.b64encode(png(colour)).decode()}" for colour in shown]
    assert {part["image_url"]["detail"] for part in parts} == {"auto"}


def test_a_document_names_its_images_by_their_content(folder: Path) -> None:
    docs = [entry.doc for entry in rendered(folder, "image")]
    assert all(str(doc["image"]).startswith("sha256:") for doc in docs)
    assert docs[0]["image"] != docs[1]["image"]
    assert docs[0]["second"] == docs[1]["second"]
    first = [entry.item.item_id for entry in rendered(folder, "image")]
    assert first == [entry.item.item_id for entry in rendered(folder, "image")]


def test_log_likelihoods_of_images_are_refused(folder: Path) -> None:
    (folder / "charts.yaml").write_text(
        TASK.replace("IMAGES", "image").replace("generate_until", "loglikelihood")
    )
    with pytest.raises(ConfigError, match="'doc_to_image' shows images, which chat endpoints take"):
        load_config(folder / "charts.yaml", [MODELS])


def test_a_file_that_is_not_there_is_an_error_that_names_it(folder: Path) -> None:
    (folder / "red.png").unlink()
    with pytest.raises(ConfigError, match=r"image 'red.png' is not there"):
        rendered(folder, "file")
