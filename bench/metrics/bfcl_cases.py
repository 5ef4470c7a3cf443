"""Writes ``tests/metrics/bfcl_cases.json``: calls of tools, and what ``bfcl-eval``'s checker says of them.

Run it with the Python of an environment that has the package; ``pip install --no-deps bfcl-eval`` will do,
since only the Python categories are taken::

    python bench/metrics/bfcl_cases.py

The questions, functions and right answers are the package's own data (Apache-2.0). A case is one of them with
calls made of its right answer: the first of its alternatives, another one, or one with a mistake of a kind
that is drawn with a fixed seed.
"""

import copy
import json
import random
import sys
import types
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parents[2] / "tests" / "metrics" / "bfcl_cases.json"
CATEGORIES = {
    "simple_python": 22, "multiple": 14, "parallel": 22, "parallel_multiple": 22,
    "live_simple": 22, "live_multiple": 18, "live_parallel": 16, "live_parallel_multiple": 14,
}  # fmt: skip


def main() -> None:
    """Draws the cases, asks the checker and writes both."""
    ast_checker, language, data = checker()
    draw = random.Random(20261122)
    cases: list[dict[str, Any]] = []
    items: dict[str, Any] = {}
    for category, count in CATEGORIES.items():
        questions = lines(data / f"BFCL_v4_{category}.json")
        right = {
            row["id"]: row["ground_truth"]
            for row in lines(data / "possible_answer" / f"BFCL_v4_{category}.json")
        }
        usable = [row for row in questions if row["id"] in right and len(json.dumps(row["function"])) < 2500]
        for row in draw.sample(usable, min(count, len(usable))):
            for kind, calls in variants(right[row["id"]], draw):
                said = ast_checker(
                    copy.deepcopy(row["function"]), copy.deepcopy(calls), copy.deepcopy(right[row["id"]]),
                    language, category, "gorilla-openfunctions-v2",
                )  # fmt: skip
                cases.append({"item": row["id"], "kind": kind, "valid": bool(said["valid"]), "calls": calls})
            functions = [{name: one[name] for name in ("name", "parameters")} for one in row["function"]]
            items[row["id"]] = {"functions": slim(functions), "right": right[row["id"]]}
    header = {
        "checker": f"bfcl-eval {version('bfcl-eval')}",
        "license": "Apache-2.0",
        "made_by": Path(__file__).name,
    }
    TARGET.write_text(
        json.dumps({**header, "items": items, "cases": cases}, ensure_ascii=False, separators=(",", ":"))
        + "\n"
    )
    print(len(cases), Counter(case["valid"] for case in cases), Counter(case["kind"] for case in cases))


def checker() -> Any:
    """The package's checker, without the clients of forty providers that its table of models imports."""
    models = types.ModuleType("bfcl_eval.constants.model_config")
    models.MODEL_CONFIG_MAPPING = {"gorilla-openfunctions-v2": types.SimpleNamespace(underscore_to_dot=False)}  # type: ignore[attr-defined]
    sys.modules["bfcl_eval.constants.model_config"] = models
    for language in ("java", "js"):
        name = f"bfcl_eval.eval_checker.ast_eval.type_convertor.{language}_type_converter"
        converter = types.ModuleType(name)
        setattr(converter, f"{language}_type_converter", None)
        sys.modules[name] = converter
    import bfcl_eval
    from bfcl_eval.constants.enums import Language
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker

    return ast_checker, Language.PYTHON, Path(bfcl_eval.__file__).parent / "data"


def lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a file with a JSON object a line."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def variants(right: list[dict[str, Any]], draw: random.Random) -> list[tuple[str, list[dict[str, Any]]]]:
    """The right calls, another choice of their alternatives, and one with a mistake."""
    first = [made(call, lambda values: values[0]) for call in right]
    other = [made(call, draw.choice) for call in right]
    draw.shuffle(other)
    kinds = list(MISTAKES)
    draw.shuffle(kinds)
    wrong = next(
        ((kind, calls) for kind in kinds if (calls := MISTAKES[kind](copy.deepcopy(first), draw))), None
    )
    return [("first", first), ("another", other), *([wrong] if wrong is not None else [])]


def made(call: dict[str, Any], choose: Any) -> dict[str, Any]:
    """A call of one of the alternatives of each parameter; what may be left out stays out if so chosen."""
    ((name, values),) = call.items()
    chosen = {key: choose(alternatives) for key, alternatives in values.items()}
    return {name: {key: filled(value, choose) for key, value in chosen.items() if value != ""}}


def filled(value: Any, choose: Any) -> Any:
    """Objects hold alternatives under each of their keys, too."""
    if isinstance(value, dict):
        inner = {
            key: choose(entry) if isinstance(entry, list) and entry else entry for key, entry in value.items()
        }
        return {key: entry for key, entry in inner.items() if entry != ""}
    return [filled(entry, choose) for entry in value] if isinstance(value, list) else value


def _arguments(calls: list[dict[str, Any]]) -> dict[str, Any]:
    return next(iter(calls[0].values()))


def _change(kind: type, by: Any) -> Any:
    def change(calls: list[dict[str, Any]], draw: random.Random) -> Any:
        arguments = _arguments(calls)
        names = [name for name, value in arguments.items() if type(value) is kind]
        if not names:
            return None
        name = draw.choice(names)
        arguments[name] = by(arguments[name])
        return calls

    return change


def _dropped(calls: list[dict[str, Any]], draw: random.Random) -> Any:
    arguments = _arguments(calls)
    if not arguments:
        return None
    del arguments[draw.choice(list(arguments))]
    return calls


def _unknown(calls: list[dict[str, Any]], draw: random.Random) -> Any:
    _arguments(calls)["verbose"] = True
    return calls


def _renamed(calls: list[dict[str, Any]], draw: random.Random) -> Any:
    ((name, arguments),) = calls[0].items()
    return [{name + "s": arguments}, *calls[1:]]


MISTAKES: dict[str, Any] = {
    "one call more": lambda calls, draw: [*calls, calls[0]],
    "one call less": lambda calls, draw: calls[1:],
    "twice the first": lambda calls, draw: [calls[0]] * len(calls) if len(calls) > 1 else None,
    "another number": _change(int, lambda value: value + 1),
    "a number as text": _change(int, str),
    "a whole number as a float": _change(int, float),
    "a float as a whole number": _change(float, int),
    "text in capitals with a comma": _change(str, lambda value: value.upper() + ","),
    "other text": _change(str, lambda value: value + " or so"),
    "not the flag": _change(bool, lambda value: not value),
    "a flag as a number": _change(bool, int),
    "list turned around": _change(list, lambda value: value[::-1]),
    "list with one more": _change(list, lambda value: [*value, *value[:1]]),
    "list of texts": _change(list, lambda value: [str(entry) for entry in value]),
    "object with a key more": _change(dict, lambda value: {**value, "more": 1}),
    "object with a key less": _change(dict, lambda value: dict(list(value.items())[1:])),
    "a parameter left out": _dropped,
    "a parameter that is not there": _unknown,
    "another name": _renamed,
}


def slim(value: Any) -> Any:
    """The functions without their descriptions, which no verdict hangs on."""
    if isinstance(value, dict):
        return {
            key: slim(entry)
            for key, entry in value.items()
            if not (key == "description" and isinstance(entry, str))
        }
    return [slim(entry) for entry in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
