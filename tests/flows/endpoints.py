"""A chat endpoint of the tests' own, on loopback, whose answers a function makes."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.loopback import answering

Body = dict[str, Any]
Script = Callable[[str, int], tuple[Body, str]]
"""Message and finish reason for a prompt and the number of its sample."""


@contextmanager
def chat_endpoint(
    answer: Callable[[Body], Body], models: Sequence[str] = (), about: Callable[[], Body] = dict
) -> Iterator[str]:
    """Answers the body of each chat with the choice that ``answer`` makes of it, one at a time, and lists
    ``models``; ``about`` is what else an answer says. Gives its base URL."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                choice = {"index": 0, "finish_reason": "stop", **answer(body)}
            usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
            self._send(
                {"id": "x", "object": "chat.completion", "created": 0, "model": body["model"],
                 "choices": [choice], "usage": usage, **about()}
            )  # fmt: skip

        def do_GET(self) -> None:
            self._send({"object": "list", "data": [{"id": model} for model in models]})

        def _send(self, document: Body) -> None:
            content = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    with answering(server):
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"


def says(text: str) -> Body:
    """The choice of a model that says this."""
    return {"message": {"role": "assistant", "content": text}}


class ScriptedChat:
    """A chat endpoint that answers a prompt by its script, which gives a message and a finish reason: each
    sample its own. ``asked`` are the prompts that came."""

    def __init__(self) -> None:
        self.url = ""
        self.script: Script = lambda prompt, sample: ({"content": ""}, "stop")
        self.asked: list[str] = []

    def choice(self, body: Body) -> Body:
        """What is answered."""
        prompt = body["messages"][-1]["content"]
        sample = self.asked.count(prompt)
        self.asked.append(prompt)
        message, finish = self.script(prompt, body.get("seed", sample))
        return {"message": message, "finish_reason": finish}
