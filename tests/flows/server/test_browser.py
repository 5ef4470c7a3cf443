"""The own server in a real browser: its user's link opens the UI, no other site reads or writes anything."""

import http.server
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from flows.server import Server, ask, link, status
from flows.server.boundary import credential
from flows.server.connection import CREDENTIAL
from tests.loopback import answering

pytestmark = pytest.mark.services

PROJECT = Path(__file__).resolve().parents[3]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
EVIL = "evil.example.com"
OPTIONS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
    f"--host-resolver-rules=MAP {EVIL} 127.0.0.1",  # a name of somebody else's that points here: rebinding
)  # fmt: skip
SECRET = "sk-that-no-site-may-read"

ATTACK = """async ([target, code]) => {
  const tried = {};
  const attempt = async (name, url, init) => {
    try {
      const answer = await fetch(target + url, init);
      tried[name] = answer.type + " " + answer.status + " " + await answer.text();
    } catch (error) { tried[name] = "refused"; }
  };
  const secrets = JSON.stringify({include_secrets: true});
  const kind = type => ({method: "POST", headers: {"Content-Type": type}, body: secrets});
  await attempt("health", "/api/health", {});
  await attempt("page", "/", {});
  await attempt("secrets", "/api/block_documents/filter", kind("application/json"));
  await attempt("secrets, simple request", "/api/block_documents/filter", kind("text/plain"));
  await attempt("with what the browser keeps", "/api/block_documents/filter",
    {...kind("text/plain"), credentials: "include"});
  await attempt("pool", "/api/work_pools/", {method: "POST", headers: {"Content-Type": "text/plain"},
    body: JSON.stringify({name: "evil", type: "process"})});
  await attempt("pool, unread", "/api/work_pools/", {method: "POST", mode: "no-cors",
    headers: {"Content-Type": "text/plain"}, body: JSON.stringify({name: "evil", type: "process"})});
  await attempt("token", "/api/csrf-token?client=evil", {});
  await attempt("code", "/nightjar/codes", {method: "POST"});
  await attempt("exchange", "/nightjar/exchange", {method: "POST", body: code});
  await attempt("exchange, unread", "/nightjar/exchange", {method: "POST", mode: "no-cors", body: code});
  tried.socket = await new Promise(done => {
    const socket = new WebSocket(target.replace("http", "ws") + "/api/events/out", ["prefect"]);
    socket.onopen = () => done("open");
    socket.onerror = socket.onclose = () => done("refused");
  });
  tried.frame = await new Promise(done => {
    const frame = document.createElement("iframe");
    frame.src = target + "/nightjar/open";
    frame.onload = () => {
      try { done(frame.contentDocument === null ? "refused" : frame.contentDocument.body.innerText); }
      catch (error) { done("refused"); }
    };
    document.body.append(frame);
  });
  return tried;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on the PATH (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=list(OPTIONS))
        yield launched
        launched.close()


@pytest.fixture
def server(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The session's server, with a secret and a run on it."""
    monkeypatch.setenv("NIGHTJAR_HOME", str(home))
    found = status()
    assert found is not None
    secret = (
        f"from prefect.blocks.system import Secret; Secret(value={SECRET!r}).save('theirs', overwrite=True)"
    )
    environment = {**os.environ, "PREFECT_API_URL": found.api, CREDENTIAL: credential()}
    subprocess.run([sys.executable, "-c", secret], env=environment, check=True, timeout=120)
    with temporary_settings({PREFECT_API_URL: found.api, PREFECT_API_AUTH_STRING: credential()}):
        yield found


@pytest.fixture
def foreign_port() -> Iterator[int]:
    """A site of somebody else's: an empty page."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>evil</title><body>")

        def log_message(self, *_: Any) -> None:
            """Silent."""

    site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    with answering(site):
        yield site.server_address[1]


def opened(page: Any, address: str) -> str:
    """What the UI shows at the address once it is there."""
    page.goto(address)
    for _ in range(600):
        text = str(page.inner_text("body"))
        if "/nightjar/" not in page.url and len(text) > 100:
            return text
        if "used already" in text:
            return text
        page.wait_for_timeout(100)
    raise AssertionError(f"{page.url} shows: {page.inner_text('body')}")


def test_another_site_can_neither_read_nor_write(browser: Any, server: Server, foreign_port: int) -> None:
    code = link(server.url, always=True).partition("code=")[2].partition("&")[0]
    context = browser.new_context()
    page = context.new_page()
    # The user's browser is logged in: what it keeps for the UI must not help a page of another site.
    opened(page, link(server.url, always=True))
    for site in (f"http://127.0.0.1:{foreign_port}", f"http://{EVIL}:{foreign_port}"):
        page.goto(site)
        for target in (server.url, f"http://{EVIL}:{server.port}", f"http://localhost:{server.port}"):
            tried = page.evaluate(ATTACK, [target, code])
            unread = ("pool, unread", "exchange, unread")
            read = {name: said for name, said in tried.items() if name not in unread}
            assert read == dict.fromkeys(read, "refused"), (site, target)
            assert all(tried[name] in ("refused", "opaque 0 ") for name in unread)
    # The own pages under a foreign name that resolves to this machine.
    answer = page.goto(f"http://{EVIL}:{server.port}/nightjar/open#code={code}")
    assert answer is not None
    assert answer.status == 403
    context.close()
    assert [pool["name"] for pool in ask("/work_pools/filter", {}) if pool["name"] == "evil"] == []
    with browser.new_context() as unused:
        text = opened(unused.new_page(), f"{server.url}/nightjar/open#code={code}")
    assert "used already" not in text, "none of them could spend the user's code"


def test_the_printed_link_opens_the_page_of_a_run_and_is_good_once(browser: Any, server: Server) -> None:
    flow = ask("/flows/", {"name": "shown"})["id"]
    run = ask("/flow_runs/", {"flow_id": flow, "name": "the run that is looked for"})["id"]
    printed = link(f"{server.url}/runs/flow-run/{run}", always=True)
    with browser.new_context() as context:
        page = context.new_page()
        refused: list[str] = []
        page.on(
            "response", lambda answer: refused.append(answer.url) if answer.status in (401, 403) else None
        )
        text = opened(page, printed)
        for _ in range(300):
            if "the run that is looked for" in (text := page.inner_text("body")):
                break
            page.wait_for_timeout(100)
        assert "the run that is looked for" in text
        assert refused == []
        assert "code=" not in page.url
        history = page.evaluate("performance.getEntries().map(entry => entry.name).join(' ')")
        assert printed.partition("code=")[2] not in history
        # From now on this browser needs no code: links in reports have none.
        other = context.new_page()
        opened(other, f"{server.url}/runs/flow-run/{run}")
        assert "used already" not in opened(other, printed), "and an old link leads there, too"
    with browser.new_context() as stranger:
        assert "used already" in opened(stranger.new_page(), printed)
