"""Documents as JSON holds them: what is stored, hashed, and shown to filters and ``process_results``."""

import math
from collections.abc import Mapping
from typing import Any

from metrics.errors import ConfigError


def plain(value: Any) -> Any:
    """``value`` with tuples as lists, numpy values as Python's, and what JSON lacks as the text a template
    would show."""
    if value is None or isinstance(value, str | bool):
        return str(value) if isinstance(value, str) and type(value) is not str else value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)


def plain_row(row: Any, where: str) -> dict[str, Any]:
    """A document; raises ConfigError where ``process_docs`` gave something else than a mapping."""
    if not isinstance(row, Mapping):
        raise ConfigError(f"{where}: a document is a mapping of fields, got {type(row).__name__} {row!r:.80}")
    return {str(key): plain(value) for key, value in row.items()}
