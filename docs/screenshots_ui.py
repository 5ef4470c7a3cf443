"""Takes the pictures of Prefect's UI that the README shows: a run's page with its graph, and its artifacts.

    python docs/screenshots_ui.py [PAGE] [--output docs/images]

PAGE is the address that ``python -m flows.eval`` prints; without it, the evaluation that completed last is
taken, on the server of PREFECT_API_URL, else on the project's own. Needs what docs/screenshots.py needs.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from screenshots import NoBrowser, headless

from flows.server import ask, link, use_server

WINDOW = {"width": 1440, "height": 900}
TALL = {"width": 1440, "height": 1400}
FLOW = "evaluate"
SETTLED = 3000  # ms that the graph is given to come to rest: it is a canvas, which tells nothing
MARGIN = 16  # pixels of the page kept around what a picture is of


class NoRun(RuntimeError):
    """There is no server, or no evaluation on it."""


def main() -> int:
    """Parses the command line and takes the pictures; 2 if there is no browser, server or run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", nargs="?", help="address of a run's page")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "images")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    try:
        take(given.page or newest(), given.output)
    except (NoBrowser, NoRun) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def newest() -> str:
    """Address of the page of the evaluation that completed last. Raises NoRun."""
    address = use_server()
    wanted = {
        "flows": {"name": {"any_": [FLOW]}},
        "flow_runs": {"state": {"type": {"any_": ["COMPLETED"]}}},
        "sort": "END_TIME_DESC",
        "limit": 1,
    }
    try:
        runs = ask("/flow_runs/filter", wanted)
    except OSError as error:
        raise NoRun(f"the Prefect server at {address} does not answer: {error}") from error
    if not runs:
        raise NoRun(f"{address} has no completed evaluation; python -m flows.eval makes one")
    return f"{address}/runs/flow-run/{runs[0]['id']}"


def take(address: str, output: Path) -> None:
    """The run's page down to its tabs, and from these on its artifacts."""
    with headless() as browser:
        page = browser.new_page(viewport=WINDOW, reduced_motion="reduce")
        page.goto(link(address, always=True))
        tabs, cards = page.locator(".p-tab-navigation").first, page.locator(".p-card")
        page.locator("canvas").wait_for()
        page.wait_for_timeout(SETTLED)
        save(page, (0.0, 0.0, lower_end(tabs)), output / "prefect-run.png")
        tabs.get_by_text("Artifacts", exact=True).click()
        cards.first.wait_for()
        page.set_viewport_size(TALL)
        page.wait_for_timeout(SETTLED)
        bottom = max(lower_end(card) for card in cards.all())
        corner = tabs.bounding_box()
        save(page, (corner["x"], corner["y"], bottom), output / "prefect-artifacts.png")


def lower_end(element: Any) -> float:
    """Where an element ends, in pixels from the window's top."""
    box = element.bounding_box()
    return float(box["y"] + box["height"])


def save(page: Any, part: tuple[float, float, float], path: Path) -> None:
    """Takes the part of the window that begins at (left, top) and ends at (its right edge, bottom)."""
    left, top = max(0.0, part[0] - MARGIN), max(0.0, part[1] - MARGIN)
    width, height = WINDOW["width"] - left, part[2] + MARGIN - top
    page.screenshot(path=path, clip={"x": left, "y": top, "width": width, "height": height})
    print(path)


if __name__ == "__main__":
    sys.exit(main())
