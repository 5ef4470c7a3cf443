"""Images and sound of messages: what is taken, how it is named, kept, sent and pruned."""

import base64
import io
import json
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image

from metrics.errors import ConfigError
from tasks.history.prune import plan_pruning, prune
from tasks.messages.media import MediaError, MediaReader, keep_media, kept_media, sent_messages, thumbnail
from tasks.models.config import SampleParams
from tasks.models.errors import BadRequest
from tasks.models.providers.openai.config import EndpointConfig
from tasks.models.providers.openai.generation import Chat, Completions
from tasks.models.records import Request
from tasks.store.schemas import REQUESTS
from tasks.store.storage import Store, StoreError

WAV = b"RIFF" + struct.pack("<I", 36) + b"WAVEfmt " + bytes(24) + b"data" + bytes(4)


def png(colour: str = "red", size: int = 8) -> bytes:
    sink = io.BytesIO()
    Image.new("RGB", (size, size), colour).save(sink, format="PNG")
    return sink.getvalue()


def test_equal_bytes_have_one_name_however_they_are_given(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    encoded = base64.b64encode(png()).decode()
    given = ["a.png", png(), f"data:image/png;base64,{encoded}", {"bytes": encoded}, {"path": "a.png"},
             {"bytes": png(), "path": "x"}, Image.open(tmp_path / "a.png")]  # fmt: skip
    reader = MediaReader([tmp_path])
    parts = [reader.part("image", value) for value in given]
    assert len({json.dumps(part) for part in parts}) == 1
    assert (
        reader.part("image", "https://example.org/x.png")["image_url"]["url"] == "https://example.org/x.png"
    )
    (media,) = reader.of([json.dumps(parts)])
    assert media.read() == png()


@pytest.mark.parametrize(
    "value", ["", None, 5, "data:image/png;base64,%%%", "~nobody_here/a.png", {"bytes": "§"}, ["a.png"]]
)
def test_what_is_no_image_is_refused(value: Any) -> None:
    with pytest.raises(MediaError):
        MediaReader().part("image", value)


def test_a_file_of_zero_bytes_is_called_empty(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    reader = MediaReader([tmp_path])
    with pytest.raises(MediaError, match=r"^'a.png' is empty$"):
        reader.part("image", "a.png")
    with pytest.raises(MediaError, match=r"^the image is empty$"):
        reader.part("image", b"")
    with pytest.raises(MediaError, match=r"^the image is no image that can be read: no known format$"):
        reader.part("image", b"no picture")
    (tmp_path / "a.wav").touch()
    with pytest.raises(MediaError, match=r"^'a.wav' is empty$"):
        reader.part("audio", "a.wav")


def test_sound_is_wav_or_mp3(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(WAV)
    reader = MediaReader([tmp_path])
    part = reader.part("audio", "a.wav")
    assert part["input_audio"]["format"] == "wav"
    (sent,) = sent_messages([{"role": "user", "content": [part]}], lambda digest: WAV)
    assert sent["content"][0]["input_audio"] == {"data": base64.b64encode(WAV).decode(), "format": "wav"}
    with pytest.raises(MediaError, match="neither WAV nor MP3"):
        reader.part("audio", b"OggS")


def test_media_lie_once_in_a_store_and_are_checked_when_read(tmp_path: Path) -> None:
    store, reader = Store(str(tmp_path / "store")), MediaReader()
    part = reader.part("image", png())
    (media,) = reader.of([json.dumps(part)])
    keep_media(store, media)
    keep_media(store, media)
    assert kept_media(store, media.digest) == png()
    (tmp_path / "store" / "media" / media.digest).write_bytes(b"else")
    with pytest.raises(StoreError, match="--refresh render"):
        kept_media(store, media.digest)


def test_a_body_holds_base64_and_a_completion_none() -> None:
    reader = MediaReader()
    chat = json.dumps(
        [{"role": "user", "content": [{"type": "text", "text": "?"}, reader.part("image", png())]}]
    )
    request = Request(b"k", "generate", chat, chat=True)
    kept = {media.digest: media.read() for media in reader.of([chat])}
    codec = Chat("m", EndpointConfig(), SampleParams(), media=kept.__getitem__)
    (call,) = codec.calls([request])
    url = call.body["messages"][0]["content"][1]["image_url"]["url"]
    assert url == f"data:image/png;base64,{base64.b64encode(png()).decode()}"
    assert call.media == len(url)
    completions = Completions("m", EndpointConfig(api="completions"), SampleParams())
    with pytest.raises(BadRequest, match="api: chat"):
        completions.calls([request])


def test_a_thumbnail_is_small() -> None:
    small = thumbnail(png(size=1000))
    content = base64.b64decode(small.partition(",")[2])
    assert max(Image.open(io.BytesIO(content)).size) == 160


def test_pruning_keeps_the_media_that_kept_runs_name(tmp_path: Path) -> None:
    store, reader = Store(str(tmp_path / "store")), MediaReader()
    named, other = (reader.part("image", png(colour)) for colour in ("red", "blue"))
    for media in reader.of([json.dumps([named, other])]):
        keep_media(store, media)
    row = {field.name: [] if pa.types.is_list(field.type) else None for field in REQUESTS}
    row |= {"item_id": "i", "doc_id": 0, "item_digest": "d", "prompt_template": "p", "kind": "generate",
            "chat": True, "prompts": [json.dumps([{"role": "user", "content": [named]}])],
            "references_json": "[]", "doc_json": "{}", "first_sample": 0}  # fmt: skip
    ref = store.write("render", "a" * 64, REQUESTS, [pa.RecordBatch.from_pylist([row], schema=REQUESTS)])
    manifest = {"run_id": "r", "started": "2026-01-01T00:00:00+00:00", "benchmark": "b", "models": ["m"],
                "artifacts": {"render": [ref.model_dump()]}}  # fmt: skip
    store.put_bytes("runs/r.json", json.dumps(manifest).encode())
    gone = other["image_url"]["url"].partition(":")[2]
    assert [entry.name for entry in plan_pruning(store).artifacts] == [f"media/{gone}"]
    prune(store)
    assert [path.name for path in (tmp_path / "store" / "media").iterdir()] == [
        named["image_url"]["url"].partition(":")[2]
    ]


@pytest.mark.parametrize("text", ["20MB", "nan", "inf", "0"])
def test_a_limit_of_media_that_is_no_number_is_refused_before_an_item_is_read(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTJAR_MAX_MEDIA_MB", text)
    with pytest.raises(
        ConfigError, match=rf"^NIGHTJAR_MAX_MEDIA_MB: expected a finite number above 0, got '{text}'"
    ):
        MediaReader()
