"""The embedded server's options: its model's version, how it behaves, and the faults it is told to show.

The version stands apart from the server, so that a model's identity is read without loading it. Faults are
drawn from one seeded generator.
"""

import random
from dataclasses import dataclass, field, fields

VERSION = 1
"""Enters cache keys: raise it when the model would answer anything differently."""


DRAWN_FAULTS = ("error_500", "error_429", "malformed", "empty", "cut", "stall")


@dataclass(frozen=True)
class Faults:
    """Shares of requests that meet each fault, and the faults that hold always.

    ``fail_prompts`` is a text: a prompt that contains it is always answered 400. ``down_after`` and
    ``up_after`` count requests: between the two, every one is answered 503. Above ``capacity`` requests in
    flight, the answer is 429.
    """

    error_500: float = 0.0
    error_429: float = 0.0
    malformed: float = 0.0
    empty: float = 0.0
    cut: float = 0.0
    stall: float = 0.0
    stall_seconds: float = 5.0
    retry_after: float | None = 1.0
    fail_prompts: str | None = None
    filter_prompts: str | None = None
    null_prompts: str | None = None
    down_after: int | None = None
    up_after: int | None = None
    ignore_echo: bool = False
    refuse_echo: bool = False
    refuse_ids: bool = False
    refuse_max_tokens_0: bool = False
    drop_bos: bool = False
    no_text_offset: bool = False
    capacity: int | None = None
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> "Faults":
        """Reads ``error_500=0.05,cut=0.02``; raises ValueError naming what is not known."""
        kinds = {field.name: field for field in fields(cls)}
        values: dict[str, object] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = part.partition("=")
            if name not in kinds:
                raise ValueError(f"fault {name!r} is not known; known are {', '.join(kinds)}")
            declared = str(kinds[name].type)
            values[name] = (
                value not in ("0", "false")
                if declared == "bool"
                else int(value)
                if declared.startswith("int")
                else value
                if declared.startswith("str")
                else float(value)
            )
        return cls(**values)  # type: ignore[arg-type]


class FaultDraw:
    """Draws a fault for each request as it comes in."""

    def __init__(self, faults: Faults) -> None:
        self._random = random.Random(faults.seed)
        self._shares = [(kind, getattr(faults, kind)) for kind in DRAWN_FAULTS]
        self._any = any(share for _, share in self._shares)

    def next(self) -> str | None:
        """The fault this request meets; None: it is answered."""
        if not self._any:
            return None
        point = self._random.random()
        for kind, share in self._shares:
            if point < share:
                return kind
            point -= share
        return None


@dataclass(frozen=True)
class DemoOptions:
    """What the server is and how it behaves; ``latency`` in seconds, ``context`` in tokens."""

    model: str = "demo"
    error_rate: float = 0.2
    latency: float = 0.0
    api_key: str | None = None
    context: int = 1 << 16
    faults: Faults = field(default_factory=Faults)
