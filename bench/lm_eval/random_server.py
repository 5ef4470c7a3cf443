"""Serves a model with random weights on loopback, in OpenAI's wire format. Runs in the peer's Python.

    PEER_PYTHON -m bench.lm_eval.random_server FOLDER [--tokenizer bytes] [--way WAY]…

Trains a tokenizer into FOLDER, prints one JSON line with the address and the tokenizer's folder when it is
ready, and ends when its standard input does. ``--way`` makes it one of the servers that people run: see
``ways.py``.
"""

import argparse
import json
import sys
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bench.lm_eval.random_model import KINDS, RandomModel, Token, build_tokenizer
from bench.lm_eval.ways import WAYS

PROJECT = Path(__file__).resolve().parents[2]


class Refused(Exception):
    """A request that is answered with an error; ``status`` says which."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Answering:
    """Bodies of answers from bodies of requests."""

    def __init__(self, model: RandomModel, ways: frozenset[str]) -> None:
        self._model = model
        self._ways = ways
        self._lock = threading.Lock()

    def answer(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a completion or chat; raises Refused."""
        with self._lock:
            if path.endswith("/chat/completions"):
                return self._chat(body)
            if path.endswith("/completions"):
                return self._completion(body)
        raise Refused(f"nothing is served at {path}", 404)

    def _chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        turns = "".join(f"<{one['role']}>{one['content']}\n" for one in body["messages"])
        ids = self._model.encoded(f"{turns}<assistant>", special=True)
        _, text, reason = self._model.generated(ids, body.get("max_tokens") or 16, _stops(body))
        message = {"role": "assistant", "content": text}
        return {"object": "chat.completion", "choices": [_choice(0, reason, message=message)]}

    def _completion(self, body: Mapping[str, Any]) -> dict[str, Any]:
        prompts = self._prompts(body.get("prompt"))
        limit = 16 if body.get("max_tokens") is None else int(body["max_tokens"])
        if limit == 0 and "no_max_tokens_0" in self._ways:
            raise Refused("max_tokens must be at least 1")
        choices, made = [], 0
        for index, ids in enumerate(prompts):
            if not ids:
                raise Refused("a prompt has no tokens")
            if len(ids) + limit > self._model.context:
                raise Refused(f"{len(ids)} tokens and {limit} more exceed the context length")
            tokens, text, reason = self._model.generated(ids, limit, _stops(body))
            made += len(tokens)
            choices.append(_choice(index, reason, text=text) | self._scores(ids, tokens, body))
        usage = {"prompt_tokens": sum(map(len, prompts)), "completion_tokens": made}
        known = {} if "no_usage" in self._ways else {"usage": usage | {"total_tokens": sum(usage.values())}}
        return {"object": "text_completion", "choices": choices, **known}

    def _scores(self, ids: list[int], made: list[int], body: Mapping[str, Any]) -> dict[str, Any]:
        if "prompt_logprobs" in self._ways:
            wanted = body.get("prompt_logprobs")
            return {} if wanted is None else {"prompt_logprobs": self._positions(ids, int(wanted))}
        if body.get("logprobs") is None or not body.get("echo"):
            return {}
        # With echo a token is generated even where the model would end: its place is in the lists.
        said = [*ids, *(made or [self._model.end])][: len(ids) + min(1, int(body.get("max_tokens", 16)))]
        tokens = self._model.scored(said, int(body["logprobs"]))
        if "ignore_echo" in self._ways:
            tokens = tokens[len(ids) :]
        return {"text": self._model.decoded([one.id for one in tokens]), "logprobs": self._lists(tokens)}

    def _positions(self, ids: Sequence[int], top: int) -> list[dict[str, Any] | None]:
        found: list[dict[str, Any] | None] = [None]
        for token in self._model.scored(ids, top)[1:]:
            best = [(name, value, place) for place, (name, value) in enumerate(token.top, 1)]
            entries = {token.id: (token.logprob, token.rank)} | {
                name: (value, place) for name, value, place in best if name != token.id
            }
            found.append(
                {
                    str(name): {"logprob": value, "rank": rank, "decoded_token": self._model.decoded([name])}
                    for name, (value, rank) in entries.items()
                }
            )
        return found

    def _lists(self, tokens: Sequence[Token]) -> dict[str, Any]:
        texts = [self._model.decoded([token.id]) for token in tokens]
        tops = [
            None
            if token.logprob is None
            else {self._model.decoded([name]): value for name, value in token.top} | {text: token.logprob}
            for text, token in zip(texts, tokens, strict=True)
        ]
        lists: dict[str, Any] = {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": tops,
            "text_offset": self._offsets([token.id for token in tokens], texts),
        }
        if "no_text_offset" in self._ways:
            del lists["text_offset"]
        return {name: values[int("drop_first" in self._ways) :] for name, values in lists.items()}

    def _offsets(self, ids: Sequence[int], texts: Sequence[str]) -> list[int]:
        if "running_offsets" in self._ways:
            return [sum(map(len, texts[:place])) for place in range(len(texts))]
        # A character that is not whole yet is none.
        return [len(self._model.decoded(ids[:place]).rstrip("\ufffd")) for place in range(len(ids))]

    def _prompts(self, prompt: Any) -> list[list[int]]:
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
            if "nested_ids" in self._ways:
                raise Refused("object of type 'int' has no len()", 500)
            prompt = [prompt]
        texts = [prompt] if isinstance(prompt, str) else prompt
        if not isinstance(texts, list) or not texts:
            raise Refused("prompt is a text, ids, or a list of either")
        if not all(isinstance(text, str) for text in texts):
            if "text_only" in self._ways:
                raise Refused("prompt takes text")
            if "ids_crash" in self._ways:
                raise Refused("TypeError: expected string", 500)
            return [list(map(int, ids)) for ids in texts]
        return [self._model.encoded(text, "add_bos" in self._ways) for text in texts]


def _stops(body: Mapping[str, Any]) -> list[str]:
    stop = body.get("stop") or []
    return [stop] if isinstance(stop, str) else [one for one in stop if one]


def _choice(index: int, reason: str, **content: Any) -> dict[str, Any]:
    return {"index": index, "finish_reason": reason, **content}


def handler(answering: Answering, version: str) -> type[BaseHTTPRequestHandler]:
    """The class that answers over HTTP of that version."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = version

        def do_GET(self) -> None:
            known = self.path.endswith("/models")
            body = {"object": "list", "data": [{"id": "random", "object": "model"}]} if known else {}
            self._send(200 if known else 404, body)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                self._send(200, answering.answer(self.path, body))
            except Refused as error:
                self._send(error.status, {"error": {"message": str(error)}})

        def _send(self, status: int, body: Any) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Says nothing: stdout is the announcement's."""

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", choices=sorted(KINDS), default="bytes")
    parser.add_argument("--way", action="append", choices=sorted(WAYS), default=[])
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    corpus = sorted([*PROJECT.glob("*.md"), *PROJECT.glob("docs/*.md")])
    build_tokenizer(options.folder, corpus, options.tokenizer)
    model = RandomModel(options.folder, options.seed, options.context)
    kind, version = (
        (HTTPServer, "HTTP/1.0") if "one_by_one" in options.way else (ThreadingHTTPServer, "HTTP/1.1")
    )
    server = kind(("127.0.0.1", 0), handler(Answering(model, frozenset(options.way)), version))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/v1"
    print(json.dumps({"base_url": address, "tokenizer": str(options.folder)}), flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main()
