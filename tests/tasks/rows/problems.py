"""A hundred problems in the format of HumanEval, and the programs that solve them.

Ten families by ten parameters: each problem has a prompt, a canonical solution, tests that were computed by
the solution itself, and mutants of it, each with one operator or constant exchanged.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

FAMILIES: Final[dict[str, tuple[str, str, Callable[[int], list[tuple[Any, ...]]]]]] = {
    "scaled": (
        "values",
        "return [value * {n} + 1 for value in values]",
        lambda n: [([1, 2, n],), ([],), ([-n],)],
    ),
    "counted": (
        "values",
        "count = 0\n    for value in values:\n        if value > {n}:\n            count += 1\n    return count",  # noqa: E501
        lambda n: [([n - 1, n, n + 1, n + 2],), ([],), ([n + 1],)],
    ),
    "joined": (
        "words",
        'return "-".join(words) + "!" * {n}',
        lambda n: [(["a", "b"],), (["x"],)],
    ),
    "powered": (
        "a",
        "total = 1\n    for _ in range({n}):\n        total = total * a\n    return total",
        lambda n: [(2,), (3,), (-1,)],
    ),
    "shifted": (
        "text",
        "return ''.join(chr(97 + (ord(c) - 97 + {n}) % 26) for c in text)",
        lambda n: [("abc",), ("xyz",), ("",)],
    ),
    "divided": (
        "a",
        "return (a // {n}, a % {n})",
        lambda n: [(7 * n + 1,), (n,), (0,), (n - 1,)],
    ),
    "nested": (
        "values",
        "return sum(sum(row) for row in values) - {n}",
        lambda n: [([[1, 2], [3, n]],), ([[n]],)],
    ),
    "ordered": (
        "values",
        "return sorted(values, key=lambda v: (v % {n}, v))",
        lambda n: [(list(range(3 * n, 0, -1)),)],
    ),
    "guarded": (
        "a, b",
        "if b == 0:\n        return {n}\n    return a - b * {n}",
        lambda n: [(n, 0), (9, 2), (n, 1)],
    ),
    "found": (
        "values",
        "for at, value in enumerate(values):\n        if value == {n}:\n            return at\n    return -1",
        lambda n: [([0, n, n],), ([n + 1],), ([n],)],
    ),
}
"""Name → arguments, body, and the arguments of its tests, by a number."""
PARAMETERS: Final = range(2, 12)


@dataclass(frozen=True)
class Problem:
    """One problem; ``test`` calls ``check`` as HumanEval's tests do."""

    name: str
    prompt: str
    canonical_solution: str
    entry_point: str
    test: str

    def program(self, solution: str) -> str:
        """What is run of a solution, as the benchmark puts it together."""
        return f"{self.prompt}{solution}\n{self.test}\ncheck({self.entry_point})"

    def mutants(self) -> list[str]:
        """Other solutions: the canonical one with one operator or constant exchanged, where that changes what
        the tests see."""
        found = []
        for solution in _mutated(self.prompt + self.canonical_solution):
            body = solution.split(":\n", 1)[1] if solution.startswith("def ") else solution
            found.append(body)
        return [body for body in found if not self._passes(body)]

    def _passes(self, body: str) -> bool:
        names: dict[str, Any] = {}
        try:
            exec(self.program(body), names)
        except Exception:
            return False
        return True


def problems() -> list[Problem]:
    """All of them, always the same."""
    return [_problem(family, n) for family in FAMILIES for n in PARAMETERS]


def _problem(family: str, n: int) -> Problem:
    arguments, body, examples = FAMILIES[family]
    name = f"{family}_{n}"
    prompt, solution = f"def {name}({arguments}):\n", f"    {body.format(n=n)}\n"
    names: dict[str, Any] = {}
    exec(prompt + solution, names)
    checks = [f"    assert candidate(*{given!r}) == {names[name](*given)!r}" for given in examples(n)]
    return Problem(name, prompt, solution, name, "\n".join(["def check(candidate):", *checks]))


_EXCHANGED: Final[dict[type, type]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.Gt: ast.LtE, ast.Eq: ast.NotEq,
}  # fmt: skip


def _mutated(source: str) -> Iterator[str]:
    places = [at for at, node in enumerate(ast.walk(ast.parse(source))) if _changeable(node)]
    for place in places:
        tree = ast.parse(source)
        node: Any = list(ast.walk(tree))[place]
        if isinstance(node, ast.Constant):
            node.value = node.value + 1
        elif isinstance(node, ast.Compare):
            node.ops[0] = _EXCHANGED[type(node.ops[0])]()
        else:
            node.op = _EXCHANGED[type(node.op)]()
        yield ast.unparse(tree) + "\n"


def _changeable(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int)
    if isinstance(node, ast.Compare):
        return type(node.ops[0]) in _EXCHANGED
    return isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _EXCHANGED
