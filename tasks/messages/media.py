"""Images and sound in messages: read and checked, named by the digest of their bytes, base64 on the wire.

In a prompt, and so in the request's key, a medium is ``sha256:<digest>``; its bytes lie once in the store, in
the folder ``media``. Parts of messages are in OpenAI's form.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from metrics.errors import ConfigError
from tasks.messages.chat import Message
from tasks.store.errors import FileMissing, StoreError
from tasks.store.home import named_path, number_set
from tasks.store.storage import MEDIA, Store
from tasks.usercode.load import check_named, is_below

FOLDER: Final = MEDIA
LARGEST_MB: Final = 20
LARGEST_PIXELS: Final = 100_000_000
"""Pixels of an image, at most: one with more is a mistake, or made to fill memory."""
REFERENCE: Final = re.compile(r"sha256:([0-9a-f]{64})")
_TYPES: Final = {"PNG": "image/png", "JPEG": "image/jpeg", "GIF": "image/gif", "WEBP": "image/webp"}
"""What endpoints take, by Pillow's names."""
_DATA_URL = re.compile(r"data:[\w/.+-]*;base64,(.*)", re.DOTALL)

Content = bytes | Path


class MediaError(ValueError):
    """An image or a sound that can't be used: the message says which, and what to do."""


@dataclass(frozen=True)
class Media:
    """An image or a sound of a message: the digest of its bytes, and where they are."""

    digest: str
    content: Content

    @property
    def reference(self) -> str:
        """How prompts name it."""
        return f"sha256:{self.digest}"

    def read(self) -> bytes:
        """Its bytes."""
        return self.content if isinstance(self.content, bytes) else self.content.read_bytes()


class MediaReader:
    """Reads the media of messages, from files relative to any of ``folders``, and keeps what it has read.

    ``owner`` is the folder of the config whose items name them: where its code must not run unasked, they lie
    below it, or below the first of ``folders``.
    """

    def __init__(self, folders: Sequence[Path] = (), owner: Path | None = None) -> None:
        _largest()  # what is wrong with it is no item's fault
        self._folders = tuple(folders)
        self._owner = owner
        self._read: dict[str, Media] = {}

    def part(self, kind: str, value: Any, detail: str | None = None) -> dict[str, Any]:
        """A part of a message for an "image" or "audio": a path, bytes in base64 (``data:…``, or ``{bytes}``
        as datasets hold them), an address for the endpoint to fetch, or a Pillow image. Raises MediaError.
        """
        if kind == "image":
            url = value if _is_address(value) else self._noted(self._image(value)).reference
            return {"type": "image_url", "image_url": {"url": url} | ({"detail": detail} if detail else {})}
        media, form = self._sound(value)
        return {"type": "input_audio", "input_audio": {"data": self._noted(media).reference, "format": form}}

    def of(self, prompts: Iterable[str]) -> tuple[Media, ...]:
        """The media that prompts name, each once."""
        named = dict.fromkeys(digest for prompt in prompts for digest in REFERENCE.findall(prompt))
        return tuple(self._read[digest] for digest in named if digest in self._read)

    def _noted(self, media: Media) -> Media:
        self._read[media.digest] = media
        return media

    def _image(self, value: Any) -> Media:
        if hasattr(value, "save") and hasattr(value, "mode"):  # Pillow's
            content: Content = png_bytes(value)
        else:
            content = self._content(value, "image")
        if isinstance(content, Path):
            stat = content.stat()
            return Media(_checked_file(content, stat.st_mtime_ns, stat.st_size), content)
        return Media(checked_image(content, "the image"), content)

    def _sound(self, value: Any) -> tuple[Media, str]:
        content = self._content(value, "audio")
        name = f"'{content.name}'" if isinstance(content, Path) else "the sound"
        data = content.read_bytes() if isinstance(content, Path) else content
        _check_size(len(data), name)
        form = sound_format(data)
        if form is None:
            raise MediaError(f"{name} is neither WAV nor MP3, which is what endpoints take")
        return Media(hashlib.sha256(data).hexdigest(), content), form

    def _content(self, value: Any, kind: str) -> Content:
        if isinstance(value, Mapping) and value.get("bytes"):
            value = value["bytes"]
            return value if isinstance(value, bytes) else _decoded(str(value), kind)
        if isinstance(value, Mapping) and isinstance(value.get("path"), str):
            value = value["path"]
        if isinstance(value, bytes):
            return value
        if isinstance(value, str) and value.startswith("data:"):
            found = _DATA_URL.fullmatch(value)
            return _decoded(found[1] if found else "", kind)
        if not isinstance(value, str) or not value.strip():
            raise MediaError(f"an {kind} is a path, an address or bytes, got {value!r:.60}")
        return self._file(value, kind)

    def _file(self, name: str, kind: str) -> Path:
        for folder in self._folders or (Path(),):
            path = named_path(folder, name)
            if path.is_file():
                self._check(path, name)
                return path
        places = " nor in ".join(dict.fromkeys(map(str, self._folders))) or "."
        raise MediaError(f"{kind} '{name}' is not there: looked for it in {places}")

    def _check(self, path: Path, name: str) -> None:
        if self._owner is None or is_below(path, self._folders[0]):
            return
        try:
            check_named(path, self._owner, name)
        except ConfigError as error:
            raise MediaError(str(error)) from error


def _is_address(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(("http://", "https://"))


def _decoded(text: str, kind: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise MediaError(f"the {kind}'s bytes are no base64") from None


@lru_cache(maxsize=65_536)
def _checked_file(path: Path, _mtime_ns: int, size: int) -> str:
    _check_size(size, f"'{path.name}'")
    return checked_image(path.read_bytes(), f"'{path.name}'")


def _check_size(size: int, name: str) -> None:
    if not size:
        raise MediaError(f"{name} is empty")
    limit = _largest()
    if size > limit * 1_000_000:
        raise MediaError(
            f"{name} is too large: {size / 1_000_000:.1f} MB, and at most {limit:g} MB are sent; make it "
            "smaller, or raise NIGHTJAR_MAX_MEDIA_MB"
        )


def _largest() -> float:
    """Megabytes of an image or a sound, at most."""
    return number_set("NIGHTJAR_MAX_MEDIA_MB", LARGEST_MB)


def checked_image(content: bytes, name: str) -> str:
    """The digest of an image that endpoints take and that can be decoded to its end; raises MediaError."""
    from PIL import Image, UnidentifiedImageError

    _check_size(len(content), name)
    try:
        with opened_image(content) as image:
            form, (width, height) = image.format, image.size
            if width * height > LARGEST_PIXELS:
                raise MediaError(
                    f"{name} is too large: {width} × {height} pixels, at most {LARGEST_PIXELS:,}"
                )
            if form not in _TYPES:
                raise MediaError(f"{name} is {form}; endpoints take PNG, JPEG, GIF and WebP: convert it")
            image.load()
    except MediaError:
        raise
    except Image.DecompressionBombError:
        raise MediaError(f"{name} is too large: more than {LARGEST_PIXELS:,} pixels") from None
    except UnidentifiedImageError:  # whose words name an object in memory
        raise MediaError(f"{name} is no image that can be read: no known format") from None
    except Exception as error:  # whatever a decoder makes of bytes that are no image
        raise MediaError(f"{name} is no image that can be read: {error}".replace("\n", " ")) from error
    return hashlib.sha256(content).hexdigest()


def opened_image(content: bytes) -> Any:
    """A Pillow image, not decoded yet; raises what Pillow raises for bytes that are no image."""
    import io
    import warnings

    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a size is checked here, by a limit of our own
        return Image.open(io.BytesIO(content))


def png_bytes(image: Any) -> bytes:
    """A Pillow image as PNG."""
    import io

    sink = io.BytesIO()
    (image if image.mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16") else image.convert("RGB")).save(
        sink, format="PNG"
    )
    return sink.getvalue()


def sound_format(content: bytes) -> str | None:
    """ "wav" or "mp3" by how the bytes begin; None for anything else."""
    if content[:4] == b"RIFF" and content[8:12] == b"WAVE":
        return "wav"
    return "mp3" if content[:3] == b"ID3" or (content[:1] == b"\xff" and content[1:2] >= b"\xe0") else None


def keep_media(store: Store, media: Media) -> None:
    """Puts a medium into the store where it is not there yet; raises StoreError."""
    name = f"{FOLDER}/{media.digest}"
    if store.exists(name):
        return
    content = media.read()
    if hashlib.sha256(content).hexdigest() != media.digest:
        raise StoreError(f"{media.content!r:.200} changed while it was read; run again")
    store.put_bytes(name, content)


def kept_media(store: Store, digest: str) -> bytes:
    """A medium's bytes; raises StoreError where they are gone or altered."""
    try:
        content = store.read(f"{FOLDER}/{digest}")
    except FileMissing:
        content = b""
    if hashlib.sha256(content).hexdigest() != digest:
        raise StoreError(
            f"store {store.uri}: {FOLDER}/{digest} is gone or altered; run with --refresh render"
        )
    return content


ReadMedia = Callable[[str], bytes]


def refuse_media(digest: str) -> bytes:
    """Raises StoreError: there is no store to read media from."""
    raise StoreError(f"there is no store to read {FOLDER}/{digest} from")


def media_size(messages: Sequence[Message]) -> int:
    """Characters of media in messages as they go on the wire."""
    parts = (
        part
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
    )
    held = (
        part.get("image_url", {}).get("url", "") or part.get("input_audio", {}).get("data", "")
        for part in parts
    )
    return sum(map(len, held))


def sent_messages(messages: Sequence[Message], read: ReadMedia) -> list[Message]:
    """The messages as they go on the wire: media as base64 in place of their digests."""
    return [
        message
        if isinstance(message.get("content"), str | None)
        else {**message, "content": [_sent(part, read) for part in message["content"]]}
        for message in messages
    ]


def _sent(part: Any, read: ReadMedia) -> Any:
    if isinstance(part, Mapping) and part.get("type") == "image_url":
        image = part["image_url"]
        return {**part, "image_url": {**image, "url": _data_url(image["url"], read)}}
    if isinstance(part, Mapping) and part.get("type") == "input_audio":
        sound = part["input_audio"]
        if found := REFERENCE.fullmatch(sound["data"]):
            sound = {**sound, "data": base64.b64encode(read(found[1])).decode()}
        return {**part, "input_audio": sound}
    return part


def _data_url(url: str, read: ReadMedia) -> str:
    found = REFERENCE.fullmatch(url)
    if found is None:
        return url
    content = read(found[1])
    return f"data:{image_type(content)};base64,{base64.b64encode(content).decode()}"


def image_type(content: bytes) -> str:
    """The media type of an image that was checked."""
    with opened_image(content) as image:
        return _TYPES[image.format]


def thumbnail(content: bytes, side: int = 160) -> str:
    """A small picture of an image, at most ``side`` pixels wide and high, as a data URL."""
    import io

    with opened_image(content) as image:
        small = image.convert("RGBA" if "A" in image.getbands() or "transparency" in image.info else "RGB")
    small.thumbnail((side, side))
    sink = io.BytesIO()
    small.save(sink, format="WEBP", quality=70)
    return f"data:image/webp;base64,{base64.b64encode(sink.getvalue()).decode()}"
