"""Many definitions resolved and validated in one process, without their datasets: ``--dry-run --no-data
--json``."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from metrics.errors import NightjarError
from tasks.benchmarks.lm_eval.definitions import Index
from tasks.benchmarks.lm_eval.selection import select_file
from tasks.benchmarks.lm_eval.translation import translate_definition


def resolve_many(paths: Sequence[str | Path], folders: Iterable[Path] = ()) -> dict[str, Any]:
    """``{"configs": [{"path", "status": "ok" | "refused", "reason", "warnings"}]}``, one entry a path, in
    order.

    A group's members are looked up among the paths, in ``folders`` (``--include-path``), then in the folder
    tree that the group's file belongs to. ``reason`` is None for "ok".
    """
    index = Index(folders)
    for path in paths:
        if Path(path).is_file():
            index.add_file(Path(path).resolve())
    return {"configs": [_resolved(Path(path), index) for path in paths]}


def _resolved(path: Path, index: Index) -> dict[str, Any]:
    try:
        selection = select_file(path, index)
        translations = [translate_definition(definition) for definition in selection.benchmarks.values()]
    except NightjarError as error:
        return {"path": str(path), "status": "refused", "reason": str(error), "warnings": []}
    warnings = [*selection.warnings, *(warning for one in translations for warning in one.warnings)]
    return {"path": str(path), "status": "ok", "reason": None, "warnings": list(dict.fromkeys(warnings))}
