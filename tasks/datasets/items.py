"""Makes items of a dataset's rows: the identity, the data and the right answer of each.

Rows come from JSONL, JSON, CSV and Parquet files, each with the place that it came from, from functions
of the user's or from a model hub. ``open_dataset`` gives the items, ``dataset_digest`` what decides them.
"""

import base64
import csv
import datetime
import decimal
import hashlib
import inspect
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from metrics.errors import ConfigError, named, users_code
from tasks.datasets.config import AS_USUAL, DatasetConfig, DatasetError, TextForm, field_at
from tasks.datasets.item import Item
from tasks.store.digests import file_digest
from tasks.store.home import named_path
from tasks.store.keys import digest
from tasks.store.schemas import cluster_text
from tasks.store.thresholds import Threshold
from tasks.usercode.load import load_function

if TYPE_CHECKING:
    import pyarrow as pa


PARQUET_ROWS: Final = Threshold("rows_of_parquet", 1_024)
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class SourceRow(NamedTuple):
    """A row as it was read. ``place`` continues the source's name in a message: ":12" or ", row 3".

    ``value`` is a DatasetError for a row that can't be read, where those after it can.
    """

    place: str
    value: Any


def read_rows(path: Path, form: TextForm = AS_USUAL) -> Iterator[SourceRow]:
    """The rows of a file by its suffix, in order; only JSON is read as a whole.

    Raises DataError naming the file, and the line where one is at fault.
    """
    for row in _rows_of_file(path, form):
        if isinstance(row.value, DatasetError):
            raise row.value
        yield row


def _rows_of_file(path: Path, form: TextForm) -> Iterator[SourceRow]:
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DatasetError(
            f"{path.name}: a dataset file ends in {', '.join(READERS)}; got '{path.suffix or path.name}'"
        )
    if not os.path.isfile(path):  # unlike Path's, this takes every text, one too long for a name included
        found = "is a folder, not a file" if os.path.isdir(path) else "is not there"
        raise DatasetError(f"{path.name} {found}: expected a dataset at {path}")
    try:
        yield from reader(path, form)
    except OSError as error:
        raise DatasetError(f"{path.name} can't be read: {error.strerror or error}") from error


def data_digest(path: Path) -> str:
    """SHA-256 over the bytes of a data file, 64 hexadecimal digits; raises DatasetError."""
    try:
        return file_digest(path)
    except OSError as error:
        raise DatasetError(f"{path.name} can't be read: {error.strerror or error} ({path})") from error


def row_places(path: Path, positions: Collection[int], form: TextForm = AS_USUAL) -> dict[int, str]:
    """Position of a row → where it stands, as "questions.jsonl:7"; empty where the file is not there any
    more."""
    if not positions:
        return {}
    try:
        numbered = path.suffix.lower() == ".jsonl" and form.encoding is None
        rows = _numbers(path) if numbered else (row.place for row in _rows_of_file(path, form))
        last = max(positions)
        wanted = set(positions)
        return {
            position: f"{path.name}{place}"
            for position, place in islice(enumerate(rows), last + 1)
            if position in wanted
        }
    except (OSError, DatasetError):
        return {}


def _numbers(path: Path) -> Iterator[str]:
    """The places of a JSONL file's rows, none of which is parsed."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield f":{number}"


def _jsonl(path: Path, form: TextForm) -> Iterator[SourceRow]:
    for number, line in enumerate(_lines(path, form.encoding), 1):
        if line.strip():
            place = f":{number}"
            try:
                value = parse_json(line.strip(), f"{path.name}{place}")
            except DatasetError as error:
                value = error
            yield SourceRow(place, value)


def _lines(path: Path, encoding: str | None) -> Iterator[bytes | str]:
    if encoding is not None:
        yield from _decoded(path, encoding).split("\n")
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line


def _json(path: Path, form: TextForm) -> Iterator[SourceRow]:
    text = path.read_bytes().removeprefix(BYTE_ORDER_MARK)
    rows = parse_json(text if form.encoding is None else _decoded(path, form.encoding), path.name)
    if not isinstance(rows, list):
        raise DatasetError(f"{path.name}: expected a JSON list of items, got {type_name(rows)}")
    for number, row in enumerate(rows, 1):
        yield SourceRow(f", item {number}", row)


def _decoded(path: Path, encoding: str | None) -> str:
    """The file's text; raises DatasetError naming the line that holds no such text."""
    data = path.read_bytes()
    try:
        return data.decode(encoding or "utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DatasetError(_not_in(f"{path.name}:{line}", encoding, error)) from error


def _not_in(where: str, encoding: str | None, error: UnicodeDecodeError) -> str:
    """What is said of bytes that are no text, with the encoding that they may have."""
    found = f"byte 0x{error.object[error.start]:02x}"
    if encoding is not None:
        return f"{where}: is not {encoding} ({found}); give the file's own encoding in 'encoding'"
    marks = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
    guess = marks.get(bytes(error.object[:2]), "cp1252")
    named = f"{{path: …, encoding: {guess}}}"
    return f"{where}: is not UTF-8 ({found}); save the file as UTF-8, or name its encoding: {named}"


def parse_json(text: bytes | str, where: str) -> Any:
    """The JSON value of ``text``; raises DataError naming ``where`` and the fault. NaN and infinities are
    no JSON.
    """
    try:
        return _DECODER.decode(text if isinstance(text, str) else text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DatasetError(_not_in(where, None, error)) from error
    except json.JSONDecodeError as error:
        spot = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
        raise DatasetError(f"{where}: malformed JSON at {spot}: {error.msg}") from error
    except RecursionError as error:
        raise DatasetError(f"{where}: malformed JSON: lists or mappings nested far too deep") from error
    except ValueError as error:
        raise DatasetError(f"{where}: malformed JSON: {error}") from error


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of its keys and values; raises ValueError for a key that is there twice."""
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"the key {twice!r} is there twice in one object")
    return value


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON value; write null")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_without_twins)


def _csv(path: Path, form: TextForm) -> Iterator[SourceRow]:
    csv.field_size_limit(sys.maxsize)  # the module's default refuses documents beyond 128 KB
    with path.open(encoding=form.encoding or "utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True, delimiter=form.delimiter or ",")
        try:
            header = next(reader, [])
            _check_header(header, form, f"{path.name}:1")
            start = reader.line_num + 1
            for values in reader:
                if values:
                    yield SourceRow(f":{start}", _csv_row(header, values, f"{path.name}:{start}"))
                start = reader.line_num + 1
        except csv.Error as error:
            raise DatasetError(f"{path.name}:{reader.line_num}: malformed CSV: {error}") from error
        except UnicodeDecodeError as error:
            _decoded(path, form.encoding)  # says in which line
            raise DatasetError(_not_in(path.name, form.encoding, error)) from error


DELIMITERS: Final = {";": "';'", "\t": '"\\t"', "|": "'|'"}
"""What stands between fields instead of a comma, as YAML has it."""


def _check_header(header: list[str], form: TextForm, where: str) -> None:
    refuse_twins(header, where)
    if form.delimiter is not None or len(header) != 1:
        return
    for delimiter, written in DELIMITERS.items():
        if delimiter in header[0]:
            found = f"the header has no comma, and {header[0].count(delimiter)} times {written}"
            said = f"say so: {{path: …, delimiter: {written}}}"
            raise DatasetError(f"{where}: {found}; if that parts the columns, {said}")


def _csv_row(header: list[str], values: list[str], where: str) -> "dict[str, str] | DatasetError":
    if len(values) != len(header):
        return DatasetError(f"{where}: {len(values)} fields, but the header has {len(header)} columns")
    return dict(zip(header, values, strict=True))


def _parquet(path: Path, form: TextForm) -> Iterator[SourceRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            refuse_twins(file.schema_arrow.names, path.name)
            for batch in file.iter_batches(batch_size=PARQUET_ROWS):
                for row in python_rows(batch, f"{path.name}, row", number + 1):
                    number += 1
                    yield SourceRow(f", row {number}", row)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        if isinstance(error, DatasetError):
            raise
        raise DatasetError(f"{path.name} is not a Parquet file that can be read: {error}") from error


def refuse_twins(columns: Sequence[str], where: str) -> None:
    """Raises DataError for a column that is there twice."""
    for name, times in Counter(columns).items():
        if times > 1:
            raise DatasetError(f"{where}: column '{name}' stands in the header twice")


def python_rows(batch: "pa.RecordBatch | pa.Table", where: str, first: int) -> list[dict[str, Any]]:
    """The rows of an Arrow table as Python values.

    Raises DataError naming the row (the first is number ``first``) and the column whose value Python has no
    equal of: a date outside the years 1 to 9999, an unknown time zone, bytes that are no text.
    """
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
    except Exception:  # whatever Arrow raises: a value, a zone, a text; found by looking at each
        rows = [_python_row(batch.slice(row, 1), f"{where} {first + row}") for row in range(batch.num_rows)]
    return rows


def _python_row(row: "pa.RecordBatch | pa.Table", where: str) -> dict[str, Any]:
    values = {}
    for name in row.schema.names:
        try:
            values[name] = row.column(name)[0].as_py()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise DatasetError(f"{where}: field '{name}' can't be read as Python has it ({said})") from error
    return values


READERS: Final[dict[str, Callable[[Path, TextForm], Iterator[SourceRow]]]] = {
    ".jsonl": _jsonl,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
}


def type_name(value: Any) -> str:
    """What a JSON-like value is, in the words of a message."""
    if value is None:
        return "null"
    names = {
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "a mapping",
    }
    return names.get(type(value), f"a value of type {type(value).__name__}")


DERIVED_ID_DIGITS = 16
FAULTS: Final = 20
"""Mistakes of a dataset that one refusal lists, at most."""
ITEMS_AFTER_FAULT: Final = 1000
"""Items behind a mistake that are kept, at most."""
Cluster = str | Sequence[str] | None
"""Dotted path of the field whose equal values belong together, or of two that cross."""


class FaultyRows(DatasetError):
    """Rows that are no items. ``beside``: items read behind the first of them, so many at most, in which
    other mistakes can be looked for."""

    def __init__(self, message: str, beside: Sequence[Item] = ()) -> None:
        super().__init__(message)
        self.beside = beside


def open_dataset(config: DatasetConfig, base_dir: str | Path, cluster: Cluster = None) -> Iterator[Item]:
    """The dataset's items in order, read as they are asked for.

    A row is either ``{"id", "data": {…}, "ground_truth"}`` or flat. ``cluster`` is the dotted path of the
    field whose equal values belong together, or those of two fields that cross. Raises DataError, naming the
    source and the line, for a row that is no item, an id that came before, and a dataset without items. The
    rows after a fault are looked at, too, so that one refusal lists up to FAULTS.
    """
    source = Path(config.path).name if config.path is not None else f"dataset {config.describe()}"
    places: dict[str, str] = {}
    faults: list[str] = []
    beside: list[Item] = []
    doc_id = -1
    rows = source_rows(config, base_dir)
    while len(faults) < FAULTS:
        try:
            row = next(rows)
        except StopIteration:
            break
        except DatasetError as error:  # nothing behind it can be read
            faults.append(str(error))
            break
        doc_id, where = doc_id + 1, source + row.place
        try:
            item = _checked(row, doc_id, config, where, cluster)
            first = places.setdefault(item.item_id, row.place)
            if first is not row.place:
                raise DatasetError(_duplicate_message(item, row, where, source + first))
        except DatasetError as error:
            faults.append(str(error))
            if config.path is None:  # a function's rows may have no end
                break
        else:
            if not faults:
                yield item
            elif len(beside) < ITEMS_AFTER_FAULT:
                beside.append(item)
    if len(faults) == FAULTS:
        faults.append(f"{source}: these are the first {FAULTS} mistakes; there may be more")
    if faults:
        raise FaultyRows("\n".join(faults), beside)
    if doc_id < 0:
        raise DatasetError(f"{source} holds no items; a dataset needs at least one")


def _checked(row: SourceRow, doc_id: int, config: DatasetConfig, where: str, cluster: Cluster) -> Item:
    if isinstance(row.value, DatasetError):
        raise row.value
    item = _item(row, doc_id, config, where)
    return item if cluster is None else _clustered(item, cluster, where)


def dataset_digest(config: DatasetConfig, base_dir: str | Path, cluster: Cluster = None) -> str:
    """Digest of everything that decides what ``open_dataset`` yields.

    A file counts by its bytes and suffix, not by its name; what a function or a hub's branch yields is read
    for it.
    """
    reading = {"id": config.id, "ground_truth": config.ground_truth, "cluster": cluster}
    if config.path is not None:
        path = named_path(base_dir, config.path)
        if os.path.isfile(path):
            written = {name: value for name, value in config.form._asdict().items() if value is not None}
            return digest({**reading, **written, "suffix": path.suffix.lower(), "bytes": data_digest(path)})
    total = hashlib.sha256(digest(reading).encode())
    for item in open_dataset(config, base_dir, cluster):
        total.update(content_digest(item).encode() + item.item_id.encode() + b"\0")
    return total.hexdigest()


def content_digest(item: Item) -> str:
    """Digest of an item's data and ground truth, whatever its id and position."""
    return digest({"data": item.data, "ground_truth": item.ground_truth})


def _item(row: SourceRow, doc_id: int, config: DatasetConfig, where: str) -> Item:
    if not isinstance(row.value, Mapping):
        raise DatasetError(f"{where}: an item is a mapping of fields, got {type_name(row.value)}")
    fields: dict[str, Any] = {}
    for key, value in row.value.items():
        if type(key) is str and type(value) is str and key.isascii() and value.isascii():
            fields[key] = value  # by far the most are such, and any text of ASCII is one of JSON
        else:
            name = _text(str(key), f"{where}: a field's name")
            fields[name] = _json_value(value, f"{where}: field {str(key)!r}")
    data = fields
    if isinstance(fields.get("data"), dict):
        beside = {key: value for key, value in fields.items() if key not in ("id", "data", "ground_truth")}
        data = {**beside, **fields["data"]}
    ground_truth = _field(config.ground_truth, "ground_truth", fields, data, where)
    given_id = _field(config.id, "id", fields, data, where)
    item_id = _item_id(given_id, where, required=config.id is not None)
    item = Item(item_id=item_id, doc_id=doc_id, data=data, ground_truth=ground_truth)
    return item if item_id else replace(item, item_id=content_digest(item)[:DERIVED_ID_DIGITS])


def _field(field: str | None, default: str, fields: dict[str, Any], data: dict[str, Any], where: str) -> Any:
    """The value of a field that the config names (it has to be there), else of the default one (it may be
    absent).
    """
    if field is None:
        return fields.get(default)
    for place in (fields, data):
        try:
            return field_at(place, field)
        except KeyError:
            continue
    raise DatasetError(
        f"{where}: no field '{field}' ({default} in the dataset's config); it has {', '.join(data)}"
    )


def _item_id(value: Any, where: str, required: bool) -> str:
    if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
        return str(value)
    if value is None or value == "":
        if required:
            raise DatasetError(
                f"{where}: the id is empty; give every item one, or none at all and leave 'id' out"
            )
        return ""
    raise DatasetError(f"{where}: an id is text or an integer, got {type_name(value)} {value!r}")


def _clustered(item: Item, cluster: str | Sequence[str], where: str) -> Item:
    texts = []
    for field in [cluster] if isinstance(cluster, str) else cluster:
        try:
            value = field_at(item.data, field)
        except KeyError:
            raise DatasetError(
                f"{where}: no field '{field}' (cluster); it has {', '.join(item.data)}"
            ) from None
        texts.append(
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
        )
    return replace(item, cluster=cluster_text(texts))


def _duplicate_message(item: Item, row: SourceRow, where: str, first: str) -> str:
    named = isinstance(row.value, Mapping) and row.value.get("id") not in (None, "")
    if (
        named
        or len(item.item_id) != DERIVED_ID_DIGITS
        or item.item_id != content_digest(item)[:DERIVED_ID_DIGITS]
    ):
        return f"{where}: item id '{item.item_id}' was already used at {first}; every item needs its own"
    return f"{where}: the same item stands at {first}, and neither has an id; remove one or give both an id"


DEEPEST = 200
"""Lists and mappings inside each other, at most: what JSON's writer takes with some to spare."""


def _json_value(value: Any, where: str, depth: int = 0) -> Any:
    """``value`` as JSON holds it; what JSON lacks becomes the text a prompt would show.

    NaN, the usual mark of a missing number in a table, becomes null. Integers beyond 64 bits and decimals
    become text, dates ISO 8601, bytes base64. Numbers and texts are of Python's own types, whatever class of
    these they came in.
    """
    if isinstance(value, str):
        return _text(value, where)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**64 else _long_number(value, where)
    if isinstance(value, float):
        if math.isinf(value):
            raise DatasetError(f"{where} is infinite, which JSON can't hold")
        return None if math.isnan(value) else float(value)
    if depth >= DEEPEST:
        raise DatasetError(f"{where}: lists or mappings stand more than {DEEPEST} deep inside each other")
    if isinstance(value, Mapping):
        return {_text(str(key), where): _json_value(entry, where, depth + 1) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(entry, where, depth + 1) for entry in value]
    return _scalar(value, where, depth)


def _text(text: str, where: str) -> str:
    """The text; raises DataError for half a character, which Python's own ``json.dumps`` writes."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DatasetError(
                f"{where} holds half of a character ({text[error.start]!a}), as of an emoji that was cut in "
                "two; UTF-8 can't hold it: repair the text, or replace it with a question mark"
            ) from None
    return str.__str__(text)


def _long_number(value: int, where: str) -> str:
    try:
        return str(value)
    except ValueError as error:  # Python's limit of digits
        raise DatasetError(f"{where}: {error}") from None


def _scalar(value: Any, where: str, depth: int) -> Any:
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | datetime.timedelta):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if hasattr(value, "tolist"):  # numpy scalars and arrays, from loader functions
        return _json_value(value.tolist(), where, depth + 1)
    raise DatasetError(f"{where} is {type_name(value)}, which JSON can't hold")


def source_rows(config: DatasetConfig, base_dir: str | Path) -> Iterator[SourceRow]:
    """The rows of the configured source, in order; raises DataError or ConfigError naming the source."""
    if config.path is not None:
        return _rows_of_file(named_path(base_dir, config.path), config.form)
    if config.function is not None:
        return _numbered(_function_rows(config, load_function(config.function, base_dir)), config.describe())
    return _numbered(_hub_rows(config), config.describe())


def check_source(config: DatasetConfig, base_dir: str | Path) -> None:
    """Raises ConfigError if a loader function is not there or does not take its ``params``. Opens no
    dataset.
    """
    if config.function is not None:
        _check_keywords(config, load_function(config.function, base_dir))


def _function_rows(config: DatasetConfig, function: Callable[..., Any]) -> Iterable[Any]:
    _check_keywords(config, function)
    try:
        with users_code():
            rows = function(**config.params)
    except Exception as error:
        raise DatasetError(f"dataset {config.function} failed: {named(error)}") from error
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes | dict):
        raise DatasetError(
            f"dataset {config.function} must return an iterable of items, got {type_name(rows)}"
        )
    return rows


def _check_keywords(config: DatasetConfig, function: Callable[..., Any]) -> None:
    try:
        inspect.signature(function).bind(**config.params)
    except TypeError as error:
        given = ", ".join(config.params) or "no params"
        raise ConfigError(f"dataset {config.function} can't be called with {given}: {error}") from error


def _numbered(rows: Iterable[Any], source: str) -> Iterator[SourceRow]:
    iterator = iter(rows)
    number = 0
    while True:
        number += 1
        try:
            with users_code():
                value = next(iterator)
        except StopIteration:
            return
        except Exception as error:
            raise DatasetError(f"dataset {source} failed at item {number}: {named(error)}") from error
        yield SourceRow(f", item {number}", value)


def _hub_rows(config: DatasetConfig) -> Iterable[Any]:
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(
            f"dataset '{config.hub}' comes from a hub, which needs the extra 'hub': pip install -e '.[hub]'"
        ) from error
    try:
        loaded: Iterable[Any] = datasets.load_dataset(
            config.hub, name=config.name, split=config.split, revision=config.revision
        )
    except Exception as error:
        raise DatasetError(f"dataset {config.describe()} of the hub can't be loaded: {error}") from error
    return loaded
