"""Our logs in Inspect's own viewer, in a real browser."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tasks.reporting.view import ResponseView, SampleView
from tests.flows.conftest import INSPECT
from tests.flows.server.test_browser import CHROMIUM, OPTIONS
from tests.flows.test_export_inspect import STRANGE, made

SECONDS = 120


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.fixture
def viewer(tmp_path: Path) -> Iterator[str]:
    """The address of ``inspect view`` over the folder of a log of ours."""
    with viewing(made(tmp_path, *STRANGE)) as address:
        yield address


@contextmanager
def viewing(log: Path) -> Iterator[str]:
    """A block with ``inspect view`` over the folder of a log."""
    port, output = free_port(), log.parent.with_name("viewer.log")
    command = ["-m", "inspect_ai", "view", "start", "--log-dir", str(log.parent), "--host", "127.0.0.1"]
    with output.open("wb") as said:
        started = subprocess.Popen(
            [os.environ[INSPECT], *command, "--port", str(port)], stdout=said, stderr=said, cwd=log.parent
        )
    try:
        for _ in range(10 * SECONDS):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert started.poll() is None, output.read_text()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        started.kill()
        started.wait()


@pytest.fixture
def page() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on the PATH (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=list(OPTIONS))
        opened = launched.new_page()
        opened.set_default_timeout(1_000 * SECONDS)
        yield opened
        launched.close()


@pytest.mark.inspect
def test_a_log_of_ours_opens_with_its_number_its_samples_and_a_conversation(viewer: str, page: Any) -> None:
    failed: list[str] = []
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.goto(viewer)
    page.get_by_text("made", exact=False).first.click()
    page.get_by_text("What is it?").first.wait_for()
    told = page.locator("body").inner_text()
    assert "0.5" in told.split()
    assert "1 of 3 samples (33%) had errors" in told
    page.get_by_text("What is it?").first.click()
    page.get_by_role("tab", name="Messages").first.click()
    page.get_by_text("A cat.").first.wait_for()
    page.get_by_role("tab", name="Transcript").click()
    page.get_by_text("look").first.wait_for()
    told = transcript(page)
    for text in ("Be brief.", "What is it?", "A cat.", "look"):
        assert text in told, told
    assert failed == []


@pytest.mark.inspect
def test_what_a_transcript_holds_is_shown_as_text(tmp_path: Path, page: Any) -> None:
    asked = '<img src=x onerror="document.title=1"> \x1b[2J \u202e what <b>now</b>? \x00'
    answer = '</script><script>document.title="owned"</script> **so** &amp;'
    sample = SampleView("bad", "m", "default", asked, ["none"], responses=[ResponseView(answer)])
    failed: list[str] = []
    page.on("pageerror", lambda error: failed.append(str(error)))
    with viewing(made(tmp_path, sample)) as address:
        page.goto(address)
        page.get_by_text("made", exact=False).first.click()
        page.get_by_text("onerror").first.click()
        page.get_by_role("tab", name="Transcript").click()
        page.get_by_text("owned").first.wait_for()
        told = transcript(page)
        assert "onerror=" in told
        assert 'document.title="owned"' in told
        assert page.title() not in ("1", "owned")
        assert page.locator("img[onerror], img[src=x]").count() == 0
    assert failed == []


def transcript(page: Any) -> str:
    """The text that is shown."""
    found: str = page.locator("body").inner_text()
    return found
