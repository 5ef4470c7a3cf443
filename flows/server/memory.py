"""What the watch knows from one look to the next, and from one process to the next: ``watch.json`` in
NIGHTJAR_HOME."""

import json
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from tasks.store.home import home, whole_file

KEPT: Final = timedelta(days=40)
"""How long it is remembered that the end of a run was told: longer than the server keeps runs."""


def this_moment() -> str:
    """Now, as the memory has it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class Memory:
    """``told`` and ``lasting`` are the keys of what was told, the latter as long as it lasts.

    ``since`` is when the watch first looked: what ended before is nobody's news.
    """

    since: str = field(default_factory=this_moment)
    looked: str | None = None
    delivered: str | None = None
    told: dict[str, str] = field(default_factory=dict)
    lasting: dict[str, str] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    slow: list[str] = field(default_factory=list)

    @classmethod
    def load(cls) -> "Memory":
        """What was kept; an empty one where there is nothing, or nothing that can be read."""
        try:
            return cls(**json.loads(memory_file().read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return cls()

    def save(self) -> None:
        """Keeps it, without what is too old to be asked about. Raises NightjarError."""
        oldest = (datetime.now(UTC) - KEPT).isoformat()
        kept = replace(
            self, told={key: at for key, at in self.told.items() if at > oldest}, slow=self.slow[-20:]
        )
        with whole_file(memory_file()) as temporary:
            temporary.write_text(json.dumps(asdict(kept), indent=1), encoding="utf-8")


def memory_file() -> Path:
    """Where it is kept."""
    return home() / "watch.json"
