"""Calls of tools against the calls that are right: names, and arguments by their values.

A call in this project's form has its arguments' JSON values. Ground truths of the Berkeley Function-Calling
Leaderboard are taken as they are, and decided as its checker does (``ast_checker``, its Python categories).
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from metrics.registry import metric
from metrics.types import Answer

TYPES: Final[dict[str, type]] = {
    "string": str, "any": str, "integer": int, "number": float, "float": float, "boolean": bool,
    "array": list, "tuple": list, "object": dict, "dict": dict,
}  # fmt: skip
"""What a value of a declared type is once it is read from JSON; BFCL's own names beside JSON Schema's."""
LISTS: Final = ("array", "tuple")
ABSENT: Final = ""
"""Among BFCL's alternatives of a parameter: it may be left out."""
_NEUTRAL: Final = re.compile(r"[ \,\.\/\-\_\*\^]")


@dataclass(frozen=True)
class ExpectedCall:
    """A call that is right: the function, for each parameter the values that are, and which may be left
    out."""

    name: str
    values: Mapping[str, Sequence[Any]]
    optional: Collection[str]


@dataclass(frozen=True)
class BfclCall:
    """A call that is right in BFCL's form: ABSENT is among the values where a parameter may be left out, and
    values within an object are lists of alternatives, too."""

    name: str
    values: Mapping[str, Sequence[Any]]


@metric(
    "tool_match",
    version=2,
    source="bfcl-eval 2026.3.23, eval_checker/ast_eval/ast_checker.py (Python categories)",
)
def tool_match(
    references: Sequence[Any],
    predictions: Sequence[Any],
    answer: Answer | None = None,
    *,
    ordered: bool = False,
) -> dict[str, Any]:
    """1 if the answer makes exactly the calls that are right, in any order, else 0; higher is better.

    The references are the calls of one right answer, all of them due (none: nothing is to be called), or
    lists of calls, any of which is right. A call is ``{name, arguments}``, with ``alternatives: {parameter:
    [further values]}`` and ``optional: [parameters]`` where there are any; its arguments are compared as JSON
    values, 1 and 1.0 being one. Or it is as in BFCL ``{name: {parameter: [values, "" where it may be left
    out]}}``, and compared by the types that the tools declare. Text is compared by its letters and digits,
    as there. ``ordered``: in this order. The calls are those of the answer, or those in a prediction that a
    filter made a list of. ``error`` says what is wrong.
    """
    calls = _made(predictions, answer)
    tools = _described(answer)
    wrong = [_wrong(_expected(calls_due), calls, tools, ordered) for calls_due in _alternatives(references)]
    right = any(reason is None for reason in wrong)
    return {"tool_match": float(right)} | ({} if right else {"error": wrong[0]})


@metric("tool_use_rate", source="this project")
def tool_use_rate(
    references: Sequence[Any],
    predictions: Sequence[Any],
    answer: Answer | None = None,
    *,
    name: str | None = None,
) -> float:
    """1 if the answer calls a tool (with ``name``: that one), else 0: its mean is the share of answers that
    do."""
    calls = _made(predictions, answer)
    return float(any(name is None or call["name"] == name for call in calls))


def _made(predictions: Sequence[Any], answer: Answer | None) -> Sequence[Mapping[str, Any]]:
    """The calls to judge."""
    prediction = predictions[0]
    if isinstance(prediction, list) and all(isinstance(call, Mapping) for call in prediction):
        return [call if "name" in call else _bfcl_made(call) for call in prediction]
    if answer is None:
        raise ValueError("there are no calls: the filter chose among answers; let it keep each of them")
    return answer.tool_calls


def _bfcl_made(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """A call as BFCL's decoders give it, ``{name: arguments}``."""
    name, arguments = next(iter(call.items()), ("", {}))
    return {"name": name, "arguments": arguments}


def _described(answer: Answer | None) -> dict[str, Mapping[str, Any]]:
    """The parameters that each tool declares, by its name."""
    functions = [tool.get("function") or {} for tool in answer.tools] if answer is not None else []
    return {str(one.get("name")): one.get("parameters") or {} for one in functions}


def _alternatives(references: Sequence[Any]) -> list[list[Any]]:
    if references and all(isinstance(reference, list) for reference in references):
        return [list(reference) for reference in references]
    return [list(references)]


def _expected(calls: Sequence[Any]) -> list[ExpectedCall | BfclCall]:
    return [_expected_call(call) for call in calls]


def _expected_call(call: Any) -> ExpectedCall | BfclCall:
    if not isinstance(call, Mapping) or not call:
        raise ValueError(f"a reference is {call!r:.80}; expected a call, {{name: …, arguments: {{…}}}}")
    if "name" not in call:
        name, values = next(iter(call.items()))
        return BfclCall(str(name), {key: _values(key, alternatives) for key, alternatives in values.items()})
    further, optional = call.get("alternatives") or {}, call.get("optional") or ()
    given = call.get("arguments") or {}
    values = {
        key: [*([given[key]] if key in given else []), *further.get(key, ())]
        for key in dict.fromkeys([*given, *further, *optional])
    }
    return ExpectedCall(str(call["name"]), values, optional)


def _values(key: str, alternatives: Any) -> list[Any]:
    if not isinstance(alternatives, list):
        raise ValueError(
            f"parameter {key!r} of a reference is {alternatives!r:.80}; expected a list of values"
        )
    return alternatives


def _wrong(
    due: Sequence[ExpectedCall | BfclCall],
    made: Sequence[Mapping[str, Any]],
    tools: Mapping[str, Mapping[str, Any]],
    ordered: bool,
) -> str | None:
    """What is wrong with the calls made; None: nothing. Each call that is due takes the first that fits."""
    if len(due) != len(made):
        return f"{len(made)} calls, expected {len(due)}"
    left = list(made)
    for expected in due:
        candidates = left[:1] if ordered else left
        reasons = [_misfit(expected, call, tools.get(expected.name)) for call in candidates]
        if None not in reasons:
            return reasons[0]
        left.pop(reasons.index(None))
    return None


def _misfit(
    expected: ExpectedCall | BfclCall, call: Mapping[str, Any], described: Mapping[str, Any] | None
) -> str | None:
    """Why a call is not the one expected; None: it is."""
    if call["name"] not in (expected.name, expected.name.replace(".", "_")):
        return f"{call['name']} is called, expected {expected.name}"
    arguments = call["arguments"]
    if not isinstance(arguments, Mapping):
        return f"the arguments of {expected.name} are no JSON object: {arguments!r:.80}"
    if isinstance(expected, BfclCall):
        return _bfcl_misfit(expected.values, arguments, described)
    for name, value in arguments.items():
        if name not in expected.values:
            return f"{name} is not expected"
        if not any(_same_json(value, right) for right in expected.values[name]):
            return _other_value(name, value, expected.values[name])
    return _missing(name for name in expected.values if name not in {*arguments, *expected.optional})


def _bfcl_misfit(
    expected: Mapping[str, Sequence[Any]], arguments: Mapping[str, Any], described: Mapping[str, Any] | None
) -> str | None:
    """Why arguments are none of those that BFCL's form of a call allows; None: they are."""
    declared = described.get("properties") if described else None
    for name in (described or {}).get("required") or ():
        if name not in arguments:
            return f"{name} is missing"
    for name, value in arguments.items():
        if name not in expected or (declared is not None and name not in declared):
            return f"{name} is not expected"
        schema = declared[name] if declared is not None else _schema_of(expected[name])
        if not _fits(value, expected[name], schema):
            return _other_value(name, value, expected[name])
    return _missing(
        name for name, values in expected.items() if name not in arguments and ABSENT not in values
    )


def _other_value(name: str, value: Any, right: Sequence[Any]) -> str:
    return f"{name} is {value!r:.80}, and expected is one of {list(right)!r:.200}"


def _missing(names: Iterable[str]) -> str | None:
    return next((f"{name} is missing" for name in names), None)


def _same_json(value: Any, right: Any) -> bool:
    """Whether two JSON values are one: numbers by their value, text by its letters and digits."""
    if isinstance(value, Mapping) and isinstance(right, Mapping):
        return value.keys() == right.keys() and all(_same_json(value[key], right[key]) for key in right)
    if isinstance(value, list) and isinstance(right, list):
        return len(value) == len(right) and all(map(_same_json, value, right))
    if isinstance(value, bool) or isinstance(right, bool):
        return value is right
    return bool(_neutral(value) == _neutral(right))


def _schema_of(values: Sequence[Any]) -> Mapping[str, Any]:
    """Where no tools are known: the type of the values that are right."""
    kind = _first_type(values)
    names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    inner = next((entry for value in values if isinstance(value, list) for entry in value), None)
    items = {"items": {"type": names.get(type(inner), "any")}} if kind is list else {}
    return {"type": names.get(kind or object, "any"), **items}


def _fits(value: Any, values: Sequence[Any], schema: Mapping[str, Any]) -> bool:
    """Whether an argument of the declared type is one of the values that are right."""
    declared = str(schema.get("type", "any"))
    kind = TYPES.get(declared, str)
    nested = TYPES.get(str((schema.get("items") or {}).get("type", "any"))) if declared in LISTS else None
    if kind is float and type(value) is int:
        value = float(value)
    first = _first_type(values)
    of_other_type = first is not None and first is not kind
    given = type(value)
    if given is not kind and given is not first:
        return False
    if given is kind and nested is not None and not _items_fit(value, values, nested):
        return False
    of_other_type = of_other_type or given is not kind
    if of_other_type:  # the right value is a variable's name, or of a type of its own
        return value in values
    if kind is dict:
        return any(_object_fits(value, candidate) for candidate in values if candidate != ABSENT)
    if kind is list:
        return _list_fits(value, values, nested is dict)
    return _neutral(value) in [
        _neutral(candidate) for candidate in values if kind is not str or _is_text(candidate)
    ]


def _first_type(values: Sequence[Any]) -> type | None:
    """The type of the first value that is right; None where the parameter can only be left out."""
    return next((type(value) for value in values if value != ABSENT), None)


def _items_fit(value: Sequence[Any], values: Sequence[Any], nested: type) -> bool:
    """Whether all items are of the declared type, or of that of the first item that is right."""
    return any(
        not isinstance(candidate, list) or all(_type_fits(item, candidate, nested) for item in value)
        for candidate in values
    )


def _type_fits(value: Any, values: Sequence[Any], kind: type) -> bool:
    return type(value) in (kind, _first_type(values))


def _list_fits(value: Sequence[Any], values: Sequence[Any], of_objects: bool) -> bool:
    candidates = [candidate if isinstance(candidate, list) else [] for candidate in values]
    if not of_objects:
        return list(map(_neutral, value)) in [list(map(_neutral, candidate)) for candidate in candidates]
    return any(
        len(value) == len(candidate)
        and all(_object_fits(item, entry) for item, entry in zip(value, candidate, strict=True))
        for candidate in candidates
    )


def _object_fits(value: Any, candidate: Any) -> bool:
    """An object whose right values stand under each key, as those of a parameter do."""
    if not isinstance(value, Mapping) or not isinstance(candidate, Mapping):
        return False
    held = all(
        key in candidate and _neutral(entry) in list(_neutrals(candidate[key]))
        for key, entry in value.items()
    )
    return held and all(key in value or ABSENT in values for key, values in candidate.items())


def _neutrals(values: Any) -> Iterator[Any]:
    yield from (_neutral(value) for value in (values if isinstance(values, list) else [values]))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _neutral(value: Any) -> Any:
    """Text in small letters, without white space and most punctuation; anything else as it is."""
    return _NEUTRAL.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value
