"""Which artifacts a manifest refers to."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tasks.store.refs import ArtifactRef


@dataclass(frozen=True)
class Reference:
    """An artifact of a run: its file's name below the store's root, the stage that made it, and what it is of
    (``step``, ``filter``, ``metric``, ``model_name``, ``prompt_template``, as far as the manifest says)."""

    name: str
    stage: str
    of: Mapping[str, str | None]


def references(manifest: Mapping[str, Any]) -> Iterator[Reference]:
    """All artifacts in a manifest's ``artifacts: {stage: [{kind, key, digest, …}]}``."""
    for stage, entries in (manifest.get("artifacts") or {}).items():
        for entry in entries:
            ref = ArtifactRef(kind=entry["kind"], key=entry["key"], digest=entry["digest"], rows=0, bytes=0)
            of = {name: value for name, value in entry.items() if name not in ArtifactRef.model_fields}
            yield Reference(name=ref.name, stage=stage, of=of)
