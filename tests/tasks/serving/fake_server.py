"""A model server for tests: it answers what its folder of weights says, and misbehaves as it is told to."""

import argparse
import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--path", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--adapter", type=Path, help="a folder that answers in place of the weights")
    parser.add_argument("--events", type=Path)
    parser.add_argument("--exit", type=int)
    parser.add_argument("--never", action="store_true", help="never listen")
    parser.add_argument("--print", type=int, default=0, help="bytes to print at the start")
    parser.add_argument("--errors", type=float, default=0, help="seconds in which it answers 500")
    parser.add_argument("--pause", type=float, default=0, help="seconds before each answer")
    parser.add_argument("--die", type=int, help="exit in the middle of this request, on its first start")
    parser.add_argument(
        "--hold", nargs=3, metavar=("EVENT", "TIMES", "FILE"), help="once EVENT came so often, wait for FILE"
    )
    parser.add_argument("--child", action="store_true", help="start a child that ignores SIGTERM")
    told = parser.parse_args()
    broken = told.path / "broken.txt"
    text = (told.adapter or told.path) / "answer.txt"
    Handler.text = text.read_text() if text.exists() else ""
    if any(lives(pid) for pid in started(told)):
        note(told, "beside")
    note(told, "start")
    line = "loading weights " * 64 + "\n"
    for _ in range(told.print // len(line)):
        sys.stdout.write(line)
    print("the last words", flush=True)
    if told.exit is not None or broken.exists():
        print("torch.OutOfMemoryError: CUDA out of memory", flush=True)
        sys.exit(told.exit or 1)
    if told.child:
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        note(told, "child", child.pid)
    if told.never:
        time.sleep(600)
    Handler.told, Handler.began = told, time.monotonic()
    ThreadingHTTPServer(("127.0.0.1", told.port), Handler).serve_forever()


def note(told: Any, word: str, pid: int | None = None) -> None:
    if told.events is not None:
        with told.events.open("a") as file:
            file.write(f"{word} {pid or os.getpid()} {told.path.name}\n")
    if told.hold is not None and told.hold[0] == word and times(told, word) >= int(told.hold[1]):
        while not Path(told.hold[2]).exists():
            time.sleep(0.02)


def started(told: Any) -> list[int]:
    """The servers that began before this one."""
    lines = told.events.read_text().splitlines() if told.events is not None and told.events.exists() else []
    return [int(line.split()[1]) for line in lines if line.startswith("start ")]


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def times(told: Any, word: str) -> int:
    return told.events.read_text().count(f"{word} ") if told.events is not None else 1


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    told: Any
    began: float
    text: str
    requests = 0

    def do_GET(self) -> None:
        if self.is_busy():
            self.reply(500, {"error": {"message": "busy loading"}})
            return
        self.reply(200, {"data": [{"id": self.told.path.name}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Handler.requests += 1
        if self.told.die is not None and Handler.requests == self.told.die and times(self.told, "start") == 1:
            os._exit(9)
        if self.is_busy():
            self.reply(500, {"error": {"message": "busy loading"}})
            return
        note(self.told, "asked")
        time.sleep(self.told.pause)
        if self.path.endswith("/chat/completions"):
            said: dict[str, Any] = {"message": {"role": "assistant", "content": self.answer(body)}}
        else:
            said = {"text": self.answer(body)}
        usage = {"prompt_tokens": 1, "completion_tokens": 1}
        self.reply(200, {"choices": [{"index": 0, "finish_reason": "stop", **said}], "usage": usage})

    def is_busy(self) -> bool:
        return time.monotonic() - self.began < float(self.told.errors)

    def answer(self, _body: Any) -> str:
        return self.text

    def reply(self, status: int, document: Any) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    main()
