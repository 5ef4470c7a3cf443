"""Looks at every file of a store, and repairs what can be repaired.

Nothing that may be of use is removed: a damaged file is renamed to ``NAME.damaged``. Of damaged answers those
are saved that are proven, a run's record is built again from the compacted copy, and the copy from the
records. A step is computed again, and answers are asked again, by the next run. Files of versions before
seals, which can only be looked at, are sealed as they are.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tasks.history.layout import FORGOTTEN, ITEMS, RESULT_ROWS, RUNS, check_run
from tasks.history.nights import SUITES
from tasks.history.prune import pruning
from tasks.history.query import FOLDER as COMPACTED
from tasks.history.query import PARTS, compact, open_checked, part_file, read_rows
from tasks.models.answers.segments import FOLDER as ANSWERS
from tasks.models.answers.segments import AnswerStore
from tasks.models.batches.records import FOLDER as BATCHES
from tasks.store.claims import FOLDER as CLAIMS
from tasks.store.errors import FileDamaged, FileMissing, StoreError, StoreUnavailable
from tasks.store.rows import write_rows
from tasks.store.storage import DAMAGED, FORMAT_MARK, MEDIA, RECORDS, Store, is_artifact

OF_ROWS: Final = {RESULT_ROWS: "results", ITEMS: "items"}


@dataclass(frozen=True)
class Damage:
    """A damaged file, what is wrong and what to do; ``done`` is what was done."""

    name: str
    reason: str
    done: str = ""


@dataclass(frozen=True)
class Findings:
    """What a store holds: ``files`` counts whole files by their folder, ``unsealed`` are whole files of
    versions before seals, ``aside`` those that were set aside earlier, ``other`` those that are not ours.
    ``unread`` are files that may be whole, and that this user may not read; nothing is done to them."""

    files: Mapping[str, int]
    bytes: int
    damaged: tuple[Damage, ...]
    unsealed: tuple[str, ...] = ()
    aside: tuple[str, ...] = ()
    other: tuple[str, ...] = ()
    sealed: int = 0
    unread: tuple[Damage, ...] = ()


def verify(store: Store, seen: Callable[[int], None] = lambda _: None) -> Findings:
    """Reads every file of the store and holds it against its digest; ``seen`` is told how many were read.

    Claims are left out: they live for seconds. Raises StoreError where the store can't be listed, or is of a
    later version.
    """
    files: Counter[str] = Counter()
    size, number = 0, 0
    damaged, unread, unsealed, aside, other = [], [], [], [], []
    with suppress(FileDamaged):  # which is found again below
        store.format()
    for entry in store.all_entries():
        folder, _, file = entry.name.rpartition("/")
        if folder.partition("/")[0] == CLAIMS or file.startswith("."):
            continue
        if file.endswith(DAMAGED):
            aside.append(entry.name)
            continue
        if not is_ours(entry.name):
            other.append(entry.name)
            continue
        number += 1
        seen(number)
        try:
            if not _is_sealed(store, entry.name):
                unsealed.append(entry.name)
        except FileMissing:  # it was there a moment ago
            continue
        except FileDamaged as error:
            damaged.append(Damage(entry.name, str(error)))
            continue
        except StoreUnavailable:
            raise
        except StoreError as error:
            unread.append(Damage(entry.name, str(error)))
            continue
        files[entry.name.partition("/")[0] if folder else entry.name] += 1
        size += entry.bytes
    return Findings(
        dict(files), size, tuple(damaged), tuple(unsealed), tuple(aside), tuple(other), unread=tuple(unread)
    )


def repair(store: Store, seen: Callable[[int], None] = lambda _: None) -> Findings:
    """As ``verify``, then repairs: every damaged file is set aside and built again where something else has
    what it held. Afterwards every file has a seal. Raises HistoryError while a run is in progress."""
    _mend_the_mark(store)
    with pruning(store) as turn:
        found = verify(store, seen)
        damaged = []
        # Records are built again from compacted copies, which are built again from them afterwards.
        for entry in sorted(found.damaged, key=lambda entry: entry.name.startswith(f"{COMPACTED}/")):
            turn.check()
            damaged.append(replace(entry, done=_mended(store, entry.name)))
        sealed = 0
        for name in found.unsealed:
            turn.check()
            sealed += _seal(store, name)
        turn.check()
        store.mark_sealed()
        compact(store, anew=bool(damaged or sealed))
    return replace(found, damaged=tuple(damaged), unsealed=(), sealed=sealed)


def is_ours(name: str) -> bool:
    """Whether a file of this name is one that this program writes."""
    folder = name.partition("/")[0]
    if name == FORMAT_MARK or folder in (MEDIA, RECORDS) or is_artifact(name):
        return True
    return folder in (
        RUNS,
        "history",
        "suites",
        "active",
        "nights",
        "checkpoints",
        "code",
        ANSWERS,
        BATCHES,
    ) and (name.endswith((".json", ".parquet")))


def _is_sealed(store: Store, name: str) -> bool:
    """Reads a file as a whole; whether it carries a digest. Raises FileDamaged, for one that is whole but in
    the place of another as well."""
    store.checked(name)
    _check_place(store, name)
    if is_artifact(name) or name.startswith(f"{MEDIA}/"):
        return True
    if not name.endswith(".parquet"):
        return store.has_seal(name)
    with store.open_table(name) as table:
        version = table.version
    if version is None:
        _rows_of(store, name)
    return version is not None


def _check_place(store: Store, name: str) -> None:
    folder, _, file = name.rpartition("/")
    if folder == RECORDS and not file.endswith(".json"):
        store.record(file, sealed=False)
    elif folder in OF_ROWS:
        with open_checked(store, name, PARTS[OF_ROWS[folder]]):
            pass
    elif folder in (RUNS, FORGOTTEN) or name.startswith(f"{SUITES}/"):
        check_run(store, name, [json.loads(store.document(name)).get("run_id")])


def _rows_of(store: Store, name: str) -> pa.Table | None:
    """The rows of a table without a seal in the columns of today, where it is no copy; raises FileDamaged."""
    folder, _, file = name.rpartition("/")
    if folder in OF_ROWS:
        with store.open_table(name) as table:
            return table.complete(table.file.read(), PARTS[OF_ROWS[folder]])
    if name.startswith(f"{ANSWERS}/"):
        return AnswerStore(store).of_model(folder.split("/")[1]).read(file)
    return None


def _mend_the_mark(store: Store) -> None:
    try:
        store.format()
    except FileDamaged:
        store.set_aside(FORMAT_MARK)
        store.mark_format()


def _mended(store: Store, name: str) -> str:
    """Repairs one damaged file; says what was done."""
    folder, _, file = name.rpartition("/")
    if folder.startswith(f"{ANSWERS}/") and name.endswith(".parquet"):
        saved = AnswerStore(store).of_model(folder.split("/")[1]).repair(file)
        return f"set aside; {saved} of its answers are saved, the others are asked for again"
    store.set_aside(name)
    if folder == COMPACTED:
        return "set aside, and made again from the records"
    if folder in (RUNS, FORGOTTEN, *OF_ROWS):
        run_id = file.rpartition(".")[0]
        made = _from_copy(store, name, folder, run_id)
        return f"set aside, {'and made again from the compacted copy' if made else 'nothing else has it'}"
    if is_artifact(name) or folder == RECORDS:
        return "set aside; its step is computed again by the next run"
    return "set aside"


def _from_copy(store: Store, name: str, folder: str, run_id: str) -> bool:
    """Writes a run's record or rows from the newest compacted copy that is whole; whether there is one."""
    part = OF_ROWS.get(folder, "runs")
    for segment in reversed(store.names(COMPACTED, ".runs.parquet")):
        with suppress(FileMissing, FileDamaged), store.open_table(part_file(segment, part)) as table:
            rows = table.complete(table.file.read(), PARTS[part])
            if table.version is None or run_id not in _runs_in(store, segment):
                continue
            rows = rows.filter(pc.equal(rows.column("run_id"), run_id))
            if part == "runs":
                store.put_document(name, rows.column("manifest")[0].as_py().encode())
            else:
                _write_rows(store, name, PARTS[part], rows)
            return True
    return False


def _runs_in(store: Store, segment: str) -> set[Any]:
    with store.open_table(part_file(segment, "runs")) as table:
        return set(table.file.read(["run_id"]).column("run_id").to_pylist())


def _seal(store: Store, name: str) -> bool:
    """Gives a whole file of a version before seals its seal; False: it is of no use any more, and removed."""
    folder, _, file = name.rpartition("/")
    # A copy that is built again, or a step's result whose key no version since then asks for.
    if folder == COMPACTED or (folder == RECORDS and not file.endswith(".json")):
        store.remove(name)
        return False
    if folder in OF_ROWS:
        run_id = file.removesuffix(".parquet")
        _write_rows(store, name, PARTS[OF_ROWS[folder]], read_rows(store, OF_ROWS[folder], run_id))
    elif file.endswith(".parquet"):
        AnswerStore(store).of_model(folder.split("/")[1]).seal(file)
    else:
        store.put_document(name, json.dumps(json.loads(store.document(name)), ensure_ascii=False).encode())
    return True


def _write_rows(store: Store, name: str, schema: pa.Schema, rows: pa.Table) -> None:
    with store.writing_table(name, schema, compression_level=3) as writer:
        write_rows(writer, schema, [rows])
