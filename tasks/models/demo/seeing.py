"""What the embedded model sees: how many separate shapes stand on the background of a picture.

A shape is a connected region of pixels that differ from the picture's upper left corner.
"""

import base64
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIDE = 256
"""Larger pictures are looked at in this size."""
SMALLEST = 4
"""Pixels of a shape, at least: what is smaller is noise of the picture's compression."""
_COUNT = re.compile(r"\bhow many\b|\bcount\b|\bnumber of\b", re.IGNORECASE)


def images_of(messages: Sequence[Any]) -> list[bytes]:
    """The pictures of the last message that has some; raises ValueError for one that is no base64."""
    for message in reversed(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        parts = content if isinstance(content, list) else []
        urls = [part["image_url"]["url"] for part in parts if part.get("type") == "image_url"]
        if urls:
            return [base64.b64decode(url.partition(";base64,")[2], validate=True) for url in urls]
    return []


def described(images: Sequence[bytes], question: str) -> str | None:
    """The answer to a question about pictures; None where there are none."""
    if not images:
        return None
    if not _COUNT.search(question):
        return f"I see {len(images)} picture{'s' if len(images) > 1 else ''}."
    return str(sum(map(shapes, images)))


def shapes(content: bytes) -> int:
    """How many shapes a picture shows; raises ValueError for what is no picture."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            picture = image.convert("RGB")
    except Exception as error:
        raise ValueError(f"the image can't be decoded: {error}") from error
    if max(picture.size) > SIDE:
        picture.thumbnail((SIDE, SIDE), Image.Resampling.NEAREST)
    pixels = np.asarray(picture, dtype=np.int16)
    return _regions(np.abs(pixels - pixels[0, 0]).sum(axis=2) > 150)


def _regions(mask: NDArray[np.bool_]) -> int:
    """Connected regions (up, down, left, right) of a mask."""
    left, count = mask.copy(), 0
    height, width = mask.shape
    for row, column in zip(*np.nonzero(mask), strict=True):
        if not left[row, column]:
            continue
        area = 0
        waiting = [(int(row), int(column))]
        left[row, column] = False
        while waiting:
            y, x = waiting.pop()
            area += 1
            for ny, nx in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                if 0 <= ny < height and 0 <= nx < width and left[ny, nx]:
                    left[ny, nx] = False
                    waiting.append((ny, nx))
        count += area >= SMALLEST
    return count
