"""What benchmarks' functions find around them where they run under lm-evaluation-harness: libraries,
tables of documents, seeded generators, a main thread that takes alarms.

``stand_ins``: while a definition's Python file loads, and while a function of it runs, ``import
datasets`` and ``import evaluate`` find a module that stands in. For ``datasets`` it does where the
library is not installed, with ``Documents``, which have the methods and options of ``datasets.Dataset``
that ``process_docs`` functions use and give the same rows; for ``evaluate`` always, since the library
itself would fetch every metric from a hub, with those of ``evaluate.py``. Afterwards they are gone, so
that nothing else takes them for the libraries.

``Generators``: the harness seeds the global generators of Python and numpy when it starts. Here each step
of each benchmark starts from that state, whatever drew before it in the process, and goes on from where
it was; for everyone else nothing has changed.

``sets_alarms``: which functions set alarms, and so need the main thread of a process.
"""

import importlib
import inspect
import random
import sys
import threading
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, cached_property, partial
from importlib.machinery import ModuleSpec, PathFinder
from operator import itemgetter
from pathlib import Path
from types import ModuleType
from typing import Any, Final, overload

import numpy as np
import pyarrow as pa

from metrics.errors import ConfigError
from tasks.store.imports import imports_of
from tasks.usercode.files import imported_files, module_place

TableRow = dict[str, Any]


MISSING: Final = "needs the library itself, the extra 'hub': pip install -e '.[hub]'"


def _refuse_method(owner: object, name: str) -> Any:
    """For names that an object or a class lacks."""
    if name.startswith("_"):
        raise AttributeError(name)
    raise AttributeError(f"datasets.Dataset.{name} {MISSING}")


class _Told(ABCMeta):
    """Classes whose missing names are told as those of their objects."""

    __getattr__ = _refuse_method


class Column:
    """The type of a column, which stays that of the table where it came from whatever rows are left."""

    def __init__(self, rows: Sequence[TableRow], name: str) -> None:
        self._rows = rows
        self._name = name

    @cached_property
    def type(self) -> pa.DataType | None:
        """The type that Arrow infers; None where it has none for the values."""
        typed = _typed([row.get(self._name) for row in self._rows])
        return None if typed is None else typed.type

    @property
    def dtype(self) -> str:
        """The type's name in ``datasets``; raises AttributeError for lists and mappings."""
        if self.type is None or pa.types.is_nested(self.type):
            raise AttributeError(f"the type of a column of lists or mappings {MISSING}")
        return "float64" if pa.types.is_float64(self.type) else str(self.type)


class Documents(Sequence[TableRow], metaclass=_Told):
    """An immutable table: rows by position, columns by name.

    ``docs[3]`` is a row, ``docs["question"]`` a column, ``docs[2:5]`` and ``docs[[1, 4]]`` columns of those
    rows.
    """

    def __init__(
        self,
        rows: Iterable[Mapping[str, Any]],
        columns: Sequence[str] | Mapping[str, Column | None] | None = None,
    ) -> None:
        self._rows = [dict(row) for row in rows]
        names = columns if columns is not None else dict.fromkeys(name for row in self._rows for name in row)
        known: Mapping[str, Column | None] = names if isinstance(names, Mapping) else {}
        self.features = {name: known.get(name) or Column(self._rows, name) for name in names}

    @classmethod
    def from_list(cls, rows: Sequence[Mapping[str, Any]], **_: Any) -> "Documents":
        """Rows as Arrow would hold them: all have the first one's columns, numbers of a column one type."""
        names = list(rows[0]) if rows else []
        return cls(regular_rows([{name: row.get(name) for name in names} for row in rows]))

    @classmethod
    def from_dict(cls, columns: Mapping[str, Sequence[Any]], **_: Any) -> "Documents":
        """The same from columns."""
        lengths = {len(values) for values in columns.values()}
        if len(lengths) > 1:
            raise ValueError(f"columns are of different lengths: {sorted(lengths)}")
        return cls.from_list(
            [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        )

    __getattr__ = _refuse_method

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[TableRow]:
        return (_copied(row) for row in self._rows)

    @overload
    def __getitem__(self, key: int) -> TableRow: ...
    @overload
    def __getitem__(self, key: Any) -> Any: ...
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            if key not in self.features:
                raise KeyError(f"column '{key}' is not there; columns are {', '.join(self.features)}")
            return [_copied(row[key]) for row in self._rows]
        if isinstance(key, int | np.integer):
            return _copied(self._rows[key])
        rows = self._rows[key] if isinstance(key, slice) else [self._rows[index] for index in key]
        return {name: [_copied(row[name]) for row in rows] for name in self.features}

    @property
    def column_names(self) -> list[str]:
        """Names of the columns, in order."""
        return list(self.features)

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return len(self._rows)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self._rows), len(self.features)

    def map(self, function: Callable[..., Any] | None = None, **options: Any) -> "Documents":
        """Each row (or batch of columns) updated by what ``function`` returns; None leaves it as it is."""

        return map_rows(self, function, options)

    def filter(self, function: Callable[..., Any], **options: Any) -> "Documents":
        """The rows for which ``function`` returns something true."""

        return self._of(
            row for row, keep in zip(self._rows, filter_mask(self, function, options), strict=True) if keep
        )

    def select(self, indices: Iterable[int], **_: Any) -> "Documents":
        """The rows at the given positions, in that order."""
        places = list(indices)
        for place in places:
            if not 0 <= place < len(self):
                raise IndexError(f"there is no row {place}; there are {len(self)}")
        return self._of(self._rows[place] for place in places)

    def take(self, n: int) -> "Documents":
        """The first n rows."""
        return self._of(self._rows[:n])

    def skip(self, n: int) -> "Documents":
        """All rows but the first n."""
        return self._of(self._rows[n:])

    def shuffle(
        self, seed: int | None = None, generator: np.random.Generator | None = None, **_: Any
    ) -> "Documents":
        """The rows in a random order: that of ``datasets`` for the same seed."""
        drawn = generator if generator is not None else np.random.default_rng(seed)
        return self.select(int(index) for index in drawn.permutation(len(self)))

    def sort(
        self,
        column_names: str | Sequence[str],
        reverse: bool | Sequence[bool] = False,
        null_placement: str = "at_end",
        **_: Any,
    ) -> "Documents":
        """The rows in the order of one or several columns; equal ones stay in order. Those without a value
        are at the end, or where ``null_placement`` says."""
        names = [column_names] if isinstance(column_names, str) else list(column_names)
        turned = [reverse] * len(names) if isinstance(reverse, bool) else list(reverse)
        placement = {"first": "at_start", "last": "at_end"}.get(null_placement, null_placement)
        if placement not in ("at_start", "at_end"):
            raise ValueError(f"null_placement is 'at_start' or 'at_end', got {null_placement!r}")
        rows = list(self._rows)
        for name, backwards in reversed(list(zip(names, turned, strict=True))):
            by: dict[int, list[TableRow]] = {0: [], 1: [], 2: []}
            for row in rows:
                by[2 if row[name] is None else int(row[name] != row[name])].append(row)  # 1: not a number
            by[0].sort(key=itemgetter(name), reverse=backwards)
            rows = [row for kind in sorted(by, reverse=placement == "at_start") for row in by[kind]]
        return self._of(rows)

    def unique(self, column: str) -> list[Any]:
        """The column's different values, in order of appearance."""
        return list(dict.fromkeys(self[column]))

    def add_column(self, name: str, column: Sequence[Any], **_: Any) -> "Documents":
        """The rows with one column more; raises ValueError for a name that is there."""
        self._refuse([name], there=True)
        values = regular_column(list(column))
        rows = [{**row, name: value} for row, value in zip(self._rows, values, strict=True)]
        return Documents(rows, {**self.features, name: None})

    def remove_columns(self, column_names: str | Sequence[str], **_: Any) -> "Documents":
        """The rows without the given columns; raises ValueError for one that is not there."""
        gone = [column_names] if isinstance(column_names, str) else list(column_names)
        self._refuse(gone)
        return self.select_columns([name for name in self.features if name not in gone])

    def select_columns(self, column_names: str | Sequence[str], **_: Any) -> "Documents":
        """The rows with the given columns alone."""
        names = [column_names] if isinstance(column_names, str) else list(column_names)
        self._refuse(names)
        rows = ({name: row[name] for name in names} for row in self._rows)
        return Documents(rows, {name: self.features[name] for name in names})

    def rename_column(self, original_column_name: str, new_column_name: str, **_: Any) -> "Documents":
        """The rows with one column under another name."""
        return self.rename_columns({original_column_name: new_column_name})

    def rename_columns(self, column_mapping: Mapping[str, str], **_: Any) -> "Documents":
        """The rows with columns under other names."""
        self._refuse(column_mapping)
        self._refuse([new for new in column_mapping.values() if new not in column_mapping], there=True)
        names = {column_mapping.get(name, name): kind for name, kind in self.features.items()}
        return Documents(
            ({column_mapping.get(name, name): value for name, value in row.items()} for row in self._rows),
            names,
        )

    def to_list(self) -> list[TableRow]:
        """All rows."""
        return list(self)

    def to_dict(self, **_: Any) -> dict[str, list[Any]]:
        """All columns."""
        return {name: self[name] for name in self.features}

    def to_pandas(self, **_: Any) -> Any:
        """A pandas DataFrame (pandas has to be installed)."""
        import pandas as pd

        return pd.DataFrame(self._rows, columns=list(self.features))

    def _refuse(self, names: Iterable[str], there: bool = False) -> None:
        """Raises ValueError for names that are no columns, or that are where they must not be ``there``."""
        for name in names:
            if (name in self.features) is there:
                said = "there already" if there else "not there"
                raise ValueError(f"column '{name}' is {said}; columns are {', '.join(self.features)}")

    def _of(self, rows: Iterable[TableRow]) -> "Documents":
        return Documents(rows, self.features)


def _copied(value: Any) -> Any:
    """``value`` with lists and mappings of its own: what is done to it leaves the table as it is."""
    if isinstance(value, dict):
        return {name: _copied(entry) for name, entry in value.items()}
    return [_copied(entry) for entry in value] if isinstance(value, list) else value


def regular_rows(
    rows: Sequence[Mapping[str, Any]], before: Mapping[str, pa.DataType | None] | None = None
) -> list[TableRow]:
    """The rows as an Arrow table gives them back.

    Missing fields become None, tuples lists, integers floats where the column has floats, and mappings of a
    column all get the same keys. A column that Arrow has no type for stays as it is. Columns that were there
    ``before`` come first, and keep their type where their values can be cast to it.
    """
    found = dict.fromkeys(name for row in rows for name in row)
    types = {name: kind for name, kind in (before or {}).items() if name in found}
    columns = {
        name: regular_column([row.get(name) for row in rows], types.get(name)) for name in {**types, **found}
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def regular_column(values: list[Any], wanted: pa.DataType | None = None) -> list[Any]:
    """One column of ``regular_rows``."""
    typed = _typed(values)
    if typed is None:
        return values
    if wanted is not None:
        with suppress(TypeError, pa.ArrowException):  # else they keep their own type
            typed = _cast(typed, wanted)
    return typed.to_pylist()  # type: ignore[no-any-return]


def _typed(values: list[Any]) -> pa.Array | None:
    """The values under the type that Arrow infers; None where it has none for them."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return None


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The array under another type as ``datasets`` casts: numbers become no texts, and fields that a mapping
    lacks None. Raises TypeError or an Arrow exception where that is not possible."""
    if array.type == wanted:
        return array
    if pa.types.is_struct(array.type) and pa.types.is_struct(wanted):
        children = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
        if set(children) <= {field.name for field in wanted}:
            parts = [_cast(children.get(field.name, pa.nulls(len(array))), field.type) for field in wanted]
            return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=array.is_null())
    elif pa.types.is_list(array.type) and pa.types.is_list(wanted):
        values = _cast(array.values, wanted.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, mask=array.is_null())
    elif not pa.types.is_nested(array.type) and not (
        pa.types.is_null(wanted) or (pa.types.is_string(wanted) and pa.types.is_primitive(array.type))
    ):
        return array.cast(wanted)
    raise TypeError(f"{array.type} is not cast to {wanted}")


BATCH = 1000
# Options that change how the work is done and not what comes out.
WITHOUT_EFFECT = frozenset(
    {
        "num_proc", "load_from_cache_file", "cache_file_name", "keep_in_memory", "writer_batch_size", "desc",
        "new_fingerprint", "disable_nullable", "suffix_template", "on_mixed_types",
        "cache_file_names",
    }
)  # fmt: skip
WITH_EFFECT = frozenset(
    {
        "with_indices",
        "batched",
        "batch_size",
        "drop_last_batch",
        "remove_columns",
        "fn_kwargs",
        "input_columns",
        "try_original_type",
    }
)


def map_rows(
    docs: "Documents", function: Callable[..., Any] | None, options: Mapping[str, Any]
) -> "Documents":
    """``docs`` with every row, or batch of columns, updated by the function's mapping."""

    _check(options)
    removed = options.get("remove_columns") or []
    gone = {removed} if isinstance(removed, str) else set(removed)
    without, changed = docs.remove_columns(sorted(gone)), not len(docs)
    rows: list[Mapping[str, Any]] = []
    for given, result in _calls(docs, function or (lambda row: row), options):
        if result is not None and not isinstance(result, Mapping):
            raise TypeError(f"the function of map must return a mapping or None, got {type(result).__name__}")
        changed = changed or result is not None
        kept = {name: value for name, value in given.items() if name not in gone}
        new = kept | {
            name: value
            for name, value in (result or {}).items()
            if name not in gone or not isinstance(result, Given)
        }
        rows.extend(_batch_rows(new) if options.get("batched") else [new])
    if not changed:
        return docs
    if not rows:
        return without
    # The library asks for this option in batches only.
    held = not options.get("batched") or options.get("try_original_type", True)
    types = {name: kind.type if held else None for name, kind in docs.features.items()}
    return Documents(regular_rows(rows, types))


def filter_mask(
    docs: "Documents", function: Callable[..., Any], options: Mapping[str, Any]
) -> Iterator[bool]:
    """For each row whether the function selects it."""
    _check(options)
    for _, result in _calls(docs, function, options):
        yield from map(bool, result) if options.get("batched") else (bool(result),)


class Given(dict[str, Any]):
    """What a function of a map is given. What is made of it by ``|`` or ``copy`` is known as such, as in the
    library: columns to remove are removed from it, too."""

    def __or__(self, other: Any) -> "Given":  # type: ignore[override]
        return Given({**self, **other})

    def copy(self) -> "Given":
        """Another one with the same values."""
        return Given(self)


def _calls(
    docs: "Documents", function: Callable[..., Any], options: Mapping[str, Any]
) -> Iterator[tuple[Mapping[str, Any], Any]]:
    """For each call the row or the columns that it is about, with what it did to them, and what it returned.
    They are as the table has them where it returned nothing, and where it was given values of columns."""
    batched = bool(options.get("batched"))
    size = (options.get("batch_size") or (len(docs) if "batch_size" in options else BATCH)) if batched else 1
    size = max(size, 1)
    inputs = options.get("input_columns")
    columns = [inputs] if isinstance(inputs, str) else inputs
    for start in range(0, len(docs) // size * size if options.get("drop_last_batch") else len(docs), size):
        part = range(start, min(start + size, len(docs)))
        place = list(part) if batched else start
        given = Given(docs[place])
        arguments: list[Any] = [given[name] for name in columns] if columns else [given]
        if options.get("with_indices"):
            arguments.append(place)
        result = function(*arguments, **(options.get("fn_kwargs") or {}))
        yield Given(docs[place]) if columns or result is None else given, result


def _batch_rows(columns: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of a batch; the function may return another number of them if it gives every column that
    stays."""
    lengths = {len(values) for values in columns.values()}
    if len(lengths) > 1:
        raise ValueError(
            f"columns of a batch are of lengths {sorted(lengths)}; remove_columns drops the old ones"
        )
    yield from (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))


def _check(options: Mapping[str, Any]) -> None:
    given = {name for name, value in options.items() if value is not None and value is not False}
    unknown = sorted(given - WITH_EFFECT - WITHOUT_EFFECT)
    if unknown:
        raise TypeError(f"option '{unknown[0]}' {MISSING}")


SETTING: Final = frozenset({"signal", "math_verify", "timeout_decorator"})
"""Modules by which alarms are set: the standard library's, and some that set them themselves."""
COLLECTION: Final = "lm_eval.tasks."
"""What benchmarks import by its full name and not as a neighbour."""


def sets_alarms(function: Callable[..., Any]) -> bool:
    """Whether the function's file, or one that it imports of users' files and of the harness's collection,
    imports a module that sets alarms."""
    while isinstance(function, partial):
        function = function.func
    try:
        path = inspect.getsourcefile(function)
    except TypeError:
        return False  # a builtin
    return path is not None and file_sets_alarms(Path(path))


def file_sets_alarms(path: Path) -> bool:
    """As ``sets_alarms``, of the functions of a file."""
    return _reaches(path, set())


def _reaches(path: Path, seen: set[str]) -> bool:
    files = [imports_of(file.read_bytes()) for file in imported_files(path)]
    imported = [entry.module for file in files for entry in file.statements]
    if any(module.partition(".")[0] in SETTING for module in imported):
        return True
    for module in imported:
        if module.startswith(COLLECTION) and module not in seen:
            seen.add(module)
            place = module_place(module)
            if place is not None and _reaches(place, seen):
                return True
    return False


# What the harness seeds the global generators with; a process_docs that shuffles draws from them.
PYTHON_SEED: Final = 0
NUMPY_SEED: Final = 1234
_drawing = threading.RLock()


class Generators:
    """The global generators of one step of one benchmark, which begin at the seeds: Python's and numpy's."""

    def __init__(self, seeds: Sequence[int] = (PYTHON_SEED, NUMPY_SEED)) -> None:
        self._seeds = seeds
        self._own: tuple[Any, Any] | None = None

    @contextmanager
    def drawn_from(self) -> Iterator[None]:
        """Inside the block they are in this step's state, afterwards in the one that they were in. One step
        at a time draws from them."""
        with _drawing:
            others = _state()
            if self._own is None:
                random.seed(self._seeds[0])
                np.random.seed(self._seeds[1])
            else:
                _set(self._own)
            try:
                yield
            finally:
                self._own = _state()
                _set(others)


def _state() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _set(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])


LIBRARY: Final = "datasets"
METRICS: Final = "evaluate"
_counting = threading.Lock()
_users = 0  # loading files at this moment, in all threads: the last one takes the stand-ins away
_alone: ContextVar[bool] = ContextVar("without_library", default=False)
_hidden: dict[str, ModuleType] = {}
"""What the stand-ins hide while they are there."""


@cache
def library_installed() -> bool:
    """Whether ``datasets`` itself is there, stand-in or not."""
    return PathFinder.find_spec(LIBRARY) is not None


_taken_away: list[Any] = []
"""What users' code put in the place of the streams: a wrapper that is collected closes what it wraps."""


@contextmanager
def kept_streams() -> Iterator[None]:
    """A block of users' code: whatever it puts in the place of standard output and standard error, what is
    printed afterwards goes where it went before. A stream that it closed or detached stays replaced.
    """
    before = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    try:
        yield
    finally:
        for name, stream in before.items():
            theirs = getattr(sys, name)
            if theirs is not stream and not _is_closed(stream):
                with suppress(AttributeError, OSError, ValueError):
                    theirs.flush()
                _taken_away.append(theirs)
                setattr(sys, name, stream)


def _is_closed(stream: Any) -> bool:
    try:
        return bool(getattr(stream, "closed", False))
    except ValueError:  # its buffer was detached
        return True


@contextmanager
def stand_ins() -> Iterator[None]:
    """Makes ``import datasets`` and ``import evaluate`` work inside the block."""
    _count(+1)
    try:
        yield
    finally:
        _count(-1)


def _count(change: int) -> None:
    global _users
    with _counting:
        first = _users == 0
        _users += change
        if first:
            for name, module in _modules().items():
                if name in sys.modules:
                    _hidden[name] = sys.modules[name]
                sys.modules[name] = module
        elif _users == 0:
            for name in _modules():
                sys.modules.pop(name, None)
            sys.modules.update(_hidden)
            _hidden.clear()


@cache
def _modules() -> dict[str, ModuleType]:
    found = {METRICS: _evaluate_module()}
    return found if library_installed() else {**found, LIBRARY: _datasets_module()}


def _evaluate_module() -> ModuleType:
    from tasks.usercode.evaluate import combine, load

    return _module(
        METRICS,
        {"load": partial(load, library=_library), "combine": partial(combine, library=_library)},
    )


@contextmanager
def without_library() -> Iterator[None]:
    """Inside the block a metric that is not here is nowhere: ``evaluate`` itself would ask a hub for it."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def _library() -> ModuleType | None:
    """``evaluate`` itself, None where it is not installed."""
    if _alone.get() or PathFinder.find_spec(METRICS) is None:
        return None
    with _counting:
        standing = sys.modules.pop(METRICS, None)
        if METRICS in _hidden:
            sys.modules[METRICS] = _hidden[METRICS]
        try:
            return importlib.import_module(METRICS)
        finally:
            if standing is not None:
                if METRICS in sys.modules:
                    _hidden[METRICS] = sys.modules[METRICS]
                sys.modules[METRICS] = standing


def _datasets_module() -> ModuleType:

    contents: dict[str, Any] = {
        "Dataset": Documents,
        "DatasetDict": dict,
        "concatenate_datasets": concatenate_datasets,
        "load_dataset": _refused("load_dataset"),
        "__getattr__": _refuse_name,
    }
    return _module(LIBRARY, contents)


def _module(name: str, contents: dict[str, Any]) -> ModuleType:
    module = ModuleType(name)
    # Without a spec, find_spec of the name raises ValueError while the stand-in is there.
    module.__spec__ = ModuleSpec(name, loader=None)
    vars(module).update(contents)
    return module


def concatenate_datasets(dsets: "Sequence[Documents]", **_: Any) -> "Documents":
    """The rows of all tables, one after the other."""

    return Documents(regular_rows([row for docs in dsets for row in docs]))


def _refused(name: str) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise ConfigError(f"datasets.{name} {MISSING}")

    return call


def _refuse_name(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _refused(name)
