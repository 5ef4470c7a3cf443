"""``python -m flows.store --verify`` looks at every file of a store, ``--repair`` fixes what it can."""

from typing import TYPE_CHECKING, Annotated

import typer

from flows.command_line import FAILED, App, clear_status, examples, print_json, status
from tasks.store.home import default_store
from tasks.store.storage import Store

if TYPE_CHECKING:
    from tasks.history.verify import Findings

app = App()


@app.command(
    epilog=examples(
        "python -m flows.store --verify",
        "python -m flows.store --repair --store s3://bucket/store",
    )
)
def store_command(
    verify: Annotated[bool, typer.Option("--verify", help="Read every file (the default)")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Set damaged files aside, rebuild what can be rebuilt")
    ] = False,
    store: Annotated[
        str | None, typer.Option(metavar="URI", help="The store; default: the project's own")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout")] = False,
) -> None:
    """Reads every file of a store and holds it against its digest; exit code 1 if one is damaged or can't be
    read."""
    from tasks.history import verify as looking

    opened = Store(store or default_store())
    look = looking.repair if repair else looking.verify
    found = look(opened, lambda number: status(f"file {number}"))
    clear_status()
    if as_json:
        print_json(as_document(found))
    else:
        print_findings(opened, found)
    if found.unread or (found.damaged and not repair):
        raise typer.Exit(FAILED)


def as_document(found: "Findings") -> dict[str, object]:
    """As ``--json`` prints it."""
    return {
        "files": dict(found.files),
        "bytes": found.bytes,
        "damaged": [vars(entry) for entry in found.damaged],
        "unread": [vars(entry) for entry in found.unread],
        "unsealed": len(found.unsealed),
        "sealed": found.sealed,
        "set_aside": list(found.aside),
        "not_ours": list(found.other),
    }


def print_findings(store: Store, found: "Findings") -> None:
    """Prints the counts, then a line for each damaged file."""
    print(f"store {store.uri}: {sum(found.files.values()):,} whole files, {found.bytes:,} bytes")
    for folder, count in sorted(found.files.items()):
        print(f"  {folder:<14} {count:>9,}")
    for entry in found.damaged:
        print(entry.reason if not entry.done else f"{entry.name}: {entry.done}")
    for entry in found.unread:
        print(entry.reason)
    if found.unsealed:
        print(
            f"{len(found.unsealed):,} files are of a version before seals and can't be verified;"
            " --repair gives them seals"
        )
    if found.sealed:
        print(f"{found.sealed:,} files of a version before seals have seals now")
    if found.aside:
        print(f"{len(found.aside):,} files were set aside earlier: NAME.damaged")
    if not found.damaged and not found.unread:
        print("nothing is damaged")


main = app.main

if __name__ == "__main__":
    main()
