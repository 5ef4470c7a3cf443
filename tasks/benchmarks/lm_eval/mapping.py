"""``map`` and ``filter`` over documents with the options of ``datasets``."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.benchmarks.lm_eval.documents import Documents

BATCH = 1000
# Options that change how the work is done and not what comes out.
WITHOUT_EFFECT = frozenset(
    {
        "num_proc", "load_from_cache_file", "cache_file_name", "keep_in_memory", "writer_batch_size", "desc",
        "new_fingerprint", "features", "disable_nullable", "suffix_template", "try_original_type",
        "on_mixed_types", "with_rank", "cache_file_names",
    }
)  # fmt: skip
KNOWN = frozenset(
    {
        "with_indices",
        "batched",
        "batch_size",
        "drop_last_batch",
        "remove_columns",
        "fn_kwargs",
        "input_columns",
    }
)


def mapped(docs: "Documents", function: Callable[..., Any] | None, options: Mapping[str, Any]) -> "Documents":
    """``docs`` with every row, or batch of columns, updated by the function's mapping."""
    from tasks.benchmarks.lm_eval.documents import Documents, regular_rows

    _check(options)
    removed = options.get("remove_columns") or []
    gone = {removed} if isinstance(removed, str) else set(removed)
    rows: list[Mapping[str, Any]] = []
    for part, result in _calls(docs, function or (lambda row: row), options):
        if result is not None and not isinstance(result, Mapping):
            raise TypeError(f"the function of map must return a mapping or None, got {type(result).__name__}")
        if options.get("batched"):
            rows.extend(_batch_rows(docs, part, result, gone))
        else:
            row = docs[part[0]]
            rows.append({**{name: row[name] for name in row if name not in gone}, **(result or {})})
    return Documents(regular_rows(rows)) if rows else docs.remove_columns(sorted(gone & set(docs.features)))


def kept(docs: "Documents", function: Callable[..., Any], options: Mapping[str, Any]) -> Iterator[bool]:
    """Whether each row is kept."""
    _check(options)
    for _, result in _calls(docs, function, options):
        yield from map(bool, result) if options.get("batched") else (bool(result),)


def _calls(
    docs: "Documents", function: Callable[..., Any], options: Mapping[str, Any]
) -> Iterator[tuple[range, Any]]:
    """The positions of each call and what it returned."""
    batched = bool(options.get("batched"))
    size = (options.get("batch_size") or (len(docs) if "batch_size" in options else BATCH)) if batched else 1
    inputs = options.get("input_columns")
    columns = [inputs] if isinstance(inputs, str) else inputs
    for start in range(0, len(docs), max(size, 1)):
        part = range(start, min(start + size, len(docs)))
        given: Mapping[str, Any] = docs[list(part)] if batched else docs[start]
        arguments: list[Any] = [given[name] for name in columns] if columns else [given]
        if options.get("with_indices"):
            arguments.append(list(part) if batched else start)
        yield part, function(*arguments, **(options.get("fn_kwargs") or {}))


def _batch_rows(
    docs: "Documents", part: Sequence[int], result: Mapping[str, Any] | None, gone: set[str]
) -> Iterator[dict[str, Any]]:
    """The rows of a batch; the function may return another number of them if it gives every column that
    stays."""
    columns = {name: values for name, values in docs[list(part)].items() if name not in gone}
    merged = {**columns, **(result or {})}
    lengths = {len(values) for values in merged.values()}
    if len(lengths) > 1:
        raise ValueError(
            f"columns of a batch are of lengths {sorted(lengths)}; remove_columns drops the old ones"
        )
    yield from (dict(zip(merged, values, strict=True)) for values in zip(*merged.values(), strict=True))


def _check(options: Mapping[str, Any]) -> None:
    unknown = sorted(set(options) - KNOWN - WITHOUT_EFFECT)
    if unknown:
        raise TypeError(f"option '{unknown[0]}' needs the library itself: pip install datasets")
