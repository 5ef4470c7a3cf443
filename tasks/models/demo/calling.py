"""Which tool the embedded model calls: the one whose words the question has most of, its parameters filled in
from the question, in their order: numbers, values of an ``enum``, names with a capital.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

_words = re.compile(r"[a-z]{3,}")
_numbers = re.compile(r"-?\d+(?:\.\d+)?")
_names = re.compile(r"(?<![.?!] )(?<!^)\b[A-Z][a-z]+(?: [A-Z][a-z]+)*")


def called(question: str, tools: Sequence[Any]) -> list[dict[str, Any]]:
    """The calls in OpenAI's form; none where no tool has a word of the question."""
    functions = [tool["function"] for tool in tools if isinstance(tool, Mapping) and "function" in tool]
    asked = set(_words.findall(question.lower()))
    shared = [len(asked & set(_words.findall(_about(function).lower()))) for function in functions]
    if not shared or not max(shared):
        return []
    function = functions[shared.index(max(shared))]
    text = orjson.dumps(_filled(question, function.get("parameters") or {})).decode()
    return [
        {"id": "call_demo", "type": "function", "function": {"name": function["name"], "arguments": text}}
    ]


def _about(function: Mapping[str, Any]) -> str:
    return f"{function.get('name', '')} {function.get('description') or ''}".replace("_", " ")


def _filled(question: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    numbers, names = _numbers.findall(question), _names.findall(question)
    filled: dict[str, Any] = {}
    for name, schema in (parameters.get("properties") or {}).items():
        value: Any = None
        if "enum" in schema:
            value = next((one for one in schema["enum"] if str(one).lower() in question.lower()), None)
        elif schema.get("type") in ("integer", "number") and numbers:
            number = float(numbers.pop(0))
            value = int(number) if schema["type"] == "integer" else number
        elif schema.get("type") == "string" and names:
            value = names.pop(0)
        if value is not None:
            filled[name] = value
    return filled
