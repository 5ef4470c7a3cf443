"""``ls`` and ``validate`` of the harness: what the folders of definitions hold, and whether it is sound."""

from collections.abc import Sequence
from typing import Any, Final

from flows.command_line import REFUSED
from flows.lm_eval.arguments import HarnessParser, names_of, path_given
from flows.lm_eval.run import folders

KINDS: Final = {
    "tasks": ("benchmark", "group", "tag"),
    "groups": ("group",),
    "subtasks": ("benchmark",),
    "tags": ("tag",),
}
"""What ``ls`` lists → kinds of names."""


def list_definitions(words: Sequence[str]) -> int:
    """Prints names, kinds and files; returns the exit code."""
    from tasks.benchmarks.lm_eval import build_index

    parser = HarnessParser(
        prog="python -m flows.lm_eval ls", description="Lists benchmarks, groups and tags."
    )
    parser.add_argument("what", choices=tuple(KINDS), nargs="?", default="tasks")
    parser.add_argument(
        "--include_path", type=path_given, metavar="DIR",
        help="folders of more definitions, joined by colons",
    )  # fmt: skip
    given = parser.parse_args(list(words))
    index = build_index(folders(given.include_path))
    found = [entry for _, entry in sorted(index.entries.items()) if entry.kind in KINDS[given.what]]
    width = max((len(entry.name) for entry in found), default=0)
    for entry in found:
        print(f"{entry.name:<{width}}  {entry.kind:<9}  {entry.path}")
    return 0


def validate_definitions(words: Sequence[str]) -> int:
    """Resolves, imports and tries definitions on made rows; the exit code is 2 where one is refused."""
    from flows.config.load import CommandInputs, validation_document
    from flows.eval.session import print_plan

    parser = HarnessParser(
        prog="python -m flows.lm_eval validate",
        description="Imports the functions of definitions, and runs them on rows made for them.",
    )
    parser.add_argument("--tasks", "-t", nargs="+", required=True, metavar="NAME")
    parser.add_argument(
        "--include_path", type=path_given, metavar="DIR",
        help="folders of more definitions, joined by colons",
    )  # fmt: skip
    given = parser.parse_args(list(words))
    inputs = CommandInputs(
        tasks=",".join(names_of(given.tasks)), include_path=tuple(folders(given.include_path))
    )
    document: dict[str, Any]
    document, code = validation_document(inputs)
    print_plan(document)
    return REFUSED if code else 0
