"""What the embedded server is told to be."""

from dataclasses import dataclass, field

from tasks.models.demo.faults import Faults


@dataclass(frozen=True)
class DemoOptions:
    """What the server is and how it behaves; ``latency`` in seconds, ``context`` in tokens."""

    model: str = "demo"
    error_rate: float = 0.2
    latency: float = 0.0
    api_key: str | None = None
    context: int = 1 << 16
    faults: Faults = field(default_factory=Faults)
