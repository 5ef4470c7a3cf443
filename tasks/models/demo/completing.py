"""Answer bodies: what the embedded model makes of a request's body."""

import itertools
import time
from collections.abc import Mapping
from typing import Any

from tasks.models.demo import protocol
from tasks.models.demo.ngram import BOS
from tasks.models.demo.options import DemoOptions
from tasks.models.demo.protocol import Unacceptable


class Completing:
    """Completes chats and texts as the options say."""

    def __init__(self, options: DemoOptions) -> None:
        self.options = options
        self._ids = itertools.count(1)

    def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a chat; raises Unacceptable."""
        prompt = protocol.prompt_of(body.get("messages"))
        size = -(-len(prompt.encode("utf-8", "surrogatepass")) // protocol.BYTES_A_TOKEN)
        self._fits(size)
        null = self.options.faults.null_prompts
        choices, tokens = [], 0
        for index in range(body.get("n") or 1):
            made = protocol.generate(prompt, body, index, self.options.error_rate)
            tokens += made.tokens
            message = {
                "role": "assistant",
                "content": None if null is not None and null in prompt else made.text,
            }
            choice = {"index": index, "message": message, "finish_reason": made.finish_reason}
            if body.get("logprobs"):
                choice["logprobs"] = protocol.chat_logprobs(made.text)
            choices.append(choice)
        return self._envelope("chat.completion", choices, protocol.usage(size, tokens))

    def completion(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one or several texts, said back where ``echo`` asks for it; raises Unacceptable."""
        choices: list[dict[str, Any]] = []
        prompt_tokens = completion_tokens = 0
        for tokens in protocol.prompts_of(body.get("prompt")):
            self._fits(len(tokens))
            prompt_tokens += len(tokens)
            if body.get("echo") and not self.options.faults.ignore_echo:
                made, count = self._echoed(tokens, body)
                choices.append({"index": len(choices), **made})
                completion_tokens += count
                continue
            for index in range(body.get("n") or 1):
                generated = protocol.generate(protocol.text_of(tokens), body, index, self.options.error_rate)
                choice: dict[str, Any] = {"text": generated.text, "finish_reason": generated.finish_reason}
                if body.get("logprobs") is not None:
                    choice["logprobs"] = protocol.prompt_logprobs(list(generated.text.encode()))
                choices.append({"index": len(choices), **choice})
                completion_tokens += generated.tokens
        return self._envelope("text_completion", choices, protocol.usage(prompt_tokens, completion_tokens))

    def _echoed(self, tokens: list[int], body: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """A prompt said back, with at most one generated token after it."""
        limit = body.get("max_tokens", 16)
        count = min(1, 16 if limit is None else limit)
        said = list(tokens) + ([protocol.greedy_token(tokens)[0]] if count else [])
        made: dict[str, Any] = {"text": protocol.text_of(said), "finish_reason": "length"}
        if body.get("logprobs") is not None:
            lists = protocol.prompt_logprobs(said)
            if self.options.faults.drop_bos and said[:1] == [BOS]:
                lists = {name: values[1:] for name, values in lists.items()}
            if self.options.faults.no_text_offset:
                del lists["text_offset"]
            made["logprobs"] = lists
        return made, count

    def _fits(self, size: int) -> None:
        if size > self.options.context:
            message = (
                f"This model's maximum context length is {self.options.context} tokens; the prompt has {size}"
            )
            raise Unacceptable(message, "context_length_exceeded")

    def _envelope(self, kind: str, choices: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": f"demo-{next(self._ids)}",
            "object": kind,
            "created": int(time.time()),
            "model": self.options.model,
            "system_fingerprint": protocol.FINGERPRINT,
            "choices": choices,
            "usage": usage,
        }
