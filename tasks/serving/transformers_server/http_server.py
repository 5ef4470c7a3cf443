"""A server for folders of Hugging Face weights: OpenAI's chat and completions, and prompts' log-likelihoods.

A program of its own, run by an interpreter that has torch and transformers; beyond these it needs the
standard library alone, and imports nothing of this project::

    python transformers_server --model ./checkpoint --port 8000 [--peft ./adapter] [--dtype float32]

Requests that wait together are worked on together, those of like length beside each other. A prompt's log-
probabilities are those of a forward pass in the weights' type, normalised in float32. A sequence that is
generated leaves its batch when it ends, and new ones join those that run: a step is one pass for all. At
temperature 0 the likeliest token is taken.

Keys and values are kept where that is proved to change nothing: when the server starts, one comparison says
whether this model gives the same log-probabilities with transformers' ``DynamicCache`` as without. Then what
several prompts begin with, as the choices of a question do, is worked on once, and a step of generation is a
pass over one token. Otherwise every pass is a plain one over whole sequences, which is right for any model
that looks back only.
"""

import argparse
import json
import signal
import sys
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from .jobs import Overloaded, Refused
from .loading import last_line, load
from .service import Service
from .worker import Worker

KNOWN = {
    "model", "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k",
    "min_p", "n", "seed", "stop", "echo", "logprobs", "top_logprobs", "prompt_logprobs", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "stream", "stream_options", "user", "chat_template_kwargs",
    "add_special_tokens",
}  # fmt: skip
"""Fields that a request may have; any other is refused, and not left out silently."""


class Handler(BaseHTTPRequestHandler):
    """HTTP/1.1 with connections that stay."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    service: Service

    def do_GET(self) -> None:
        """Health, and the one model that is served."""
        if self.path.startswith("/health"):
            self._send(200, {"status": "ok"})
        elif self.path.rstrip("/") == "/v1/models":
            length = self.service.worker.limit
            model = {"id": self.service.name, "object": "model", "max_model_len": length}
            self._send(200, {"object": "list", "data": [model]})
        else:
            self._send(404, _error(f"no such path: {self.path}"))

    def do_POST(self) -> None:
        """Completions and chat completions."""
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        ways = {"/v1/completions": self.service.completions, "/v1/chat/completions": self.service.chat}
        answer = ways.get(self.path.rstrip("/"))
        if answer is None:
            self._send(404, _error(f"no such path: {self.path}"))
            return
        try:
            body = json.loads(content)
            if not isinstance(body, dict):
                raise Refused("expected a JSON object")
            unknown = sorted(name for name in body.keys() - KNOWN if body[name] is not None)
            if unknown:
                raise Refused(f"this server does not take {', '.join(unknown)}")
            reply = answer(body)
        except (Refused, ValueError) as error:
            self._send(400, _error(str(error)))
        except Overloaded as error:
            self._send(503, _error(str(error)))
        except Exception as error:  # a fault of this program, which asking again does not fix
            traceback.print_exc()
            self._send(400, _error(f"a fault of the server, the same at every attempt: {last_line(error)}"))
        else:
            if body.get("stream"):
                self._stream(reply)
            else:
                self._send(200, reply)

    def _send(self, status: int, document: dict[str, Any]) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, reply: dict[str, Any]) -> None:
        """The whole answer as one event: this server has no first words before the last."""
        chunk = {**reply, "object": reply["object"].replace("chat.completion", "chat.completion.chunk")}
        for choice in chunk["choices"]:
            if "message" in choice:
                choice["delta"] = choice.pop("message")
        content = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing of single requests."""


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error"}}


class Server(ThreadingHTTPServer):
    """A thread a connection."""

    daemon_threads = True
    request_queue_size = 512


def chosen_device(said: str) -> str:
    """The device that was asked for, or the best there is."""
    if said != "auto":
        return said
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Serves a folder of Hugging Face weights.")
    parser.add_argument("--model", required=True)
    parser.add_argument("--revision", help="of a hub's model")
    parser.add_argument("--peft", help="folder of an adapter (LoRA) over the model")
    parser.add_argument("--name")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--device-map", help="auto, balanced, sequential …: over several GPUs")
    parser.add_argument("--batch-bytes", type=int, default=None, help="of logits, in one pass")
    parser.add_argument("--rows", type=int, default=64, help="sequences that are generated at once")
    parser.add_argument("--trust-remote-code", action="store_true")
    return parser


def main() -> None:
    """Loads the model and serves it until it is ended."""
    told = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    device = chosen_device(told.device)
    dtype = told.dtype if told.dtype == "auto" else getattr(torch, told.dtype)
    model, tokenizer = load(told, device, dtype)
    size = told.batch_bytes or (4 << 30 if device == "cuda" else 1 << 27)
    worker = Worker(model, tokenizer, size // 4, told.rows)
    Handler.service = Service(worker, told.name or told.model)
    print(f"serving {told.model} on {device} in {model.dtype} at {told.host}:{told.port}", flush=True)
    with torch.inference_mode():
        worker.passes.compare()
    if not worker.passes.keeps:
        print(f"keys and values are not kept, which is slower: {worker.passes.why_not}", flush=True)
    threading.Thread(target=worker.run, name="model", daemon=True).start()
    Server((told.host, told.port), Handler).serve_forever()
