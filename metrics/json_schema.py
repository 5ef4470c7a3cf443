"""Whether an answer is JSON of a schema."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from metrics.json_values import MOST_LEVELS, levels, read_json, shallow
from metrics.registry import metric


@metric(
    "json_schema_valid",
    version=2,
    source="jsonschema, Draft 2020-12 unless the schema names another",
    libraries=("jsonschema",),
)
def json_schema_valid(
    references: Sequence[Any], predictions: Sequence[Any], *, schema: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """1 if the whole answer is JSON that the schema allows, else 0; higher is better.

    The schema is the argument ``schema``, else the item's reference. An answer between ``` needs the filter
    ``code_block`` (``language: json``) before. ``error`` says what is wrong and where. Raises for a schema
    that is none.
    """
    given = schema if schema is not None else references[0] if references else None
    if not isinstance(given, Mapping | bool):
        raise ValueError(
            f"the schema is {given!r:.80}; expected a JSON schema, as the argument or the reference"
        )
    try:
        value = _read(predictions[0]) if isinstance(predictions[0], str) else shallow(predictions[0])
    except ValueError as error:
        return {"json_schema_valid": 0.0, "error": f"not JSON: {error}"}
    wrong = _first_error(_validator(json.dumps(given, sort_keys=True)), value)
    if wrong is None:
        return {"json_schema_valid": 1.0}
    # A key may hold half a character, which no file can.
    return {"json_schema_valid": 0.0, "error": wrong[:400].encode("utf-8", "backslashreplace").decode()}


def _first_error(validator: Any, value: Any) -> str | None:
    """What is wrong with an answer, and where; None: nothing."""
    try:
        wrong = min(validator.iter_errors(value), key=_place, default=None)
    except OverflowError as error:
        return f"holds a number that is too large to check: {error}"
    except RecursionError:
        if levels(value) < MOST_LEVELS / 2:  # then the schema refers to itself for ever
            raise
        return "is nested too deeply to check"
    return None if wrong is None else f"{wrong.json_path}: {wrong.message}"


def _read(text: str) -> Any:
    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no JSON value")

    return read_json(text, refuse)


def _place(error: Any) -> tuple[int, str]:
    return len(error.absolute_path), error.json_path


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    from jsonschema import exceptions, validators
    from referencing import Registry

    read = json.loads(schema)
    kind = validators.validator_for(read, default=validators.Draft202012Validator)
    try:
        kind.check_schema(read)
    except exceptions.SchemaError as error:
        raise ValueError(f"the schema is none: {error.json_path}: {error.message}") from error
    return kind(read, registry=Registry())  # no schema is fetched from elsewhere
