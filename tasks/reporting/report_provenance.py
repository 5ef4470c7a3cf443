"""What a manifest says, as rows of a name and a text."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tasks.reporting import report_numbers as numbers


def run_line(manifest: Mapping[str, Any]) -> str:
    """Which run this is and when it was, on one line."""
    parts: list[str | None] = [str(manifest[key]) for key in ("run_name", "run_id") if manifest.get(key)]
    when = next((manifest[key] for key in ("finished", "started", "date") if manifest.get(key)), None)
    if when:
        parts.append(_moment(when))
    return " · ".join(dict.fromkeys(part for part in parts if part))


def costs(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Cost, tokens and requests of the manifest as rows, whatever their nesting."""
    found: list[tuple[str, str]] = []
    for key in ("requests", "tokens", "cost", "saved"):
        if manifest.get(key) is not None:
            found += flat(key, manifest[key])
    return found


def accounts(manifest: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Model → what its requests took, as the manifest's ``models`` holds it."""
    models = manifest.get("models")
    if not isinstance(models, Mapping):
        return {}
    return {str(name): account for name, account in models.items() if isinstance(account, Mapping)}


def steps(manifest: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Stage, and how many of its steps were computed, served from the cache, and failed."""
    stages = manifest.get("steps")
    if not isinstance(stages, Mapping):
        return []
    return [
        (str(stage), [numbers.count(n.get(kind) or 0) for kind in ("computed", "cached", "failed")])
        for stage, n in stages.items()
        if isinstance(n, Mapping)
    ]


def provenance(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the run was made of, as rows; configuration and artifacts stay in the manifest's text."""
    left_out = {
        "artifacts",
        "config",
        "cost",
        "diagnostics",
        "models",
        "requests",
        "saved",
        "steps",
        "tokens",
    }
    shown = {**manifest, "started": _moment(manifest.get("started"))}
    return [row for key, value in shown.items() if key not in left_out for row in flat(key, value)]


def flat(name: str, value: Any) -> list[tuple[str, str]]:
    """A nested value as rows of a name ("versions · numpy") and a text."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        return [row for key, entry in value.items() for row in flat(f"{name} · {key}", entry)]
    if isinstance(value, list | tuple) and all(isinstance(entry, str | int | float) for entry in value):
        return [(name, ", ".join(map(str, value)))] if value else []
    if isinstance(value, list | tuple):
        return [row for index, entry in enumerate(value) for row in flat(f"{name} · {index}", entry)]
    if isinstance(value, float):
        return [(name, f"{value:,.6g}")]
    if isinstance(value, int) and not isinstance(value, bool) and "seed" not in name:
        return [(name, numbers.count(value))]
    return [(name, str(value))]


def _moment(when: Any) -> str | None:
    """A time, in seconds since 1970 or as ISO 8601 text, to the minute."""
    if when is None:
        return None
    if isinstance(when, int | float):
        when = datetime.fromtimestamp(when, UTC).isoformat()
    return f"{str(when).replace('T', ' ')[:16]} UTC"
