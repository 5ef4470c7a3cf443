"""The codec of generations: makes calls to chat and completions of requests, and answers of their replies.

It says when a reply is an answer, an error of the model or worth another attempt. The connection chooses
it, the engine uses it.

A model's thought is told from its answer in one text by the marks of the model's family. Chat templates
of several families open the thought themselves, so that the text holds its end alone, or nothing of it
where the tokens were used up before; ``probes`` looks for the marks at the end of a rendered prompt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from tasks.messages.calls import calls_of, calls_text
from tasks.messages.chat import chat_body, content_text
from tasks.messages.media import ReadMedia, media_size, refuse_media, sent_messages
from tasks.models.config import DemoConfig, EndpointConfig, ReasoningConfig, SampleParams
from tasks.models.errors import (
    FILTERED,
    REFUSED,
    BadRequest,
    ContentFiltered,
    EmptyAnswer,
    MalformedBody,
    Refused,
    SettledError,
    shortened,
)
from tasks.models.records import (
    Call,
    KeptAnswer,
    Reply,
    Request,
    provenance,
    text_or_none,
    usage_of,
)
from tasks.models.tokenizers import Tokenizer

Opened = bool | Literal["auto"]
"""Whether the chat template opens the thought: then a text without any mark is a thought that never ended.
"auto": the text's own marks say it."""


@dataclass(frozen=True)
class Marks:
    """What stands before and after a thought.

    ``ends`` are texts that the family puts behind the thought or the answer beside that; ``wrapper`` stands
    around its answers.
    """

    opening: str
    closing: str
    ends: tuple[str, ...] = ()
    wrapper: tuple[str, str] | None = None

    def bare(self, text: str) -> str:
        """The text without what the family puts behind it."""
        stripped = text.strip()
        for end in self.ends:
            stripped = stripped.removesuffix(end).rstrip()
        return stripped

    def answer(self, text: str) -> str:
        """What stands behind a thought, without the family's own marks."""
        behind = self.bare(text) if any(end in text for end in self.ends) else text.lstrip("\n")
        if self.wrapper is None or not behind.strip().startswith(self.wrapper[0]):
            return behind
        return behind.strip().removeprefix(self.wrapper[0]).removesuffix(self.wrapper[1]).strip("\n")


THINK: Final = Marks("<think>", "</think>")
FAMILIES: Final[Mapping[str, Marks]] = {
    "think": THINK,
    "mistral": Marks("[THINK]", "[/THINK]"),
    "seed": Marks("<seed:think>", "</seed:think>"),
    "harmony": Marks(
        "<|channel|>analysis<|message|>",
        "<|channel|>final<|message|>",
        ("<|return|>", "<|start|>assistant", "<|end|>"),
    ),
    "kimi": Marks("◁think▷", "◁/think▷"),
    "cohere": Marks(
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        ("<|END_RESPONSE|>",),
        ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    "apertus": Marks("<|inner_prefix|>", "<|inner_suffix|>"),
    "thought": Marks("<thought>", "</thought>"),
    "reasoning": Marks("<reasoning>", "</reasoning>"),
    "granite": Marks("Here is my thought process:", "Here is my response:"),
    "hunyuan": Marks("<think>", "</think>", wrapper=("<answer>", "</answer>")),
    "ernie": Marks("<think>", "</think>", wrapper=("<response>", "</response>")),
}
"""The marks of families by name: DeepSeek, Qwen, GLM, MiniMax and others (think), Magistral (mistral),
Seed-OSS, gpt-oss (harmony), Kimi-VL, Command A Reasoning (cohere), Apertus, EXAONE Deep (thought), Reka Flash
(reasoning), Granite 3.2, Hunyuan A13B, ERNIE 4.5."""
UNMISTAKABLE: Final = ("think", "mistral", "seed", "harmony", "kimi", "cohere", "apertus")
"""Families whose marks no answer begins with: what "auto" looks for. ``<reasoning>`` and ``<thought>`` are
often asked for by prompts, and then are part of the answer."""


def marks_of(named: str | tuple[str, str]) -> tuple[Marks, ...]:
    """The marks that a config names: a family's, two texts, or "auto"."""
    if isinstance(named, tuple):
        return (Marks(*named),)
    return tuple(FAMILIES[name] for name in (UNMISTAKABLE if named == "auto" else (named,)))


ANY: Final = marks_of("auto")


def split_thought(
    text: str, opened: Opened = "auto", known: Sequence[Marks] = ANY
) -> tuple[str | None, str | None]:
    """The answer and the thought before it; None for what is not there.

    >>> split_thought("<think>2 + 2</think>\\n4"), split_thought("2 + 2</think>4"), split_thought("4")
    (('4', '2 + 2'), ('4', '2 + 2'), ('4', None))
    >>> split_thought("<think>2 +"), split_thought("2 +", opened=True)
    ((None, '2 +'), (None, '2 +'))
    """
    begins = text.lstrip()
    marks = next((marks for marks in known if begins.startswith((marks.opening, marks.closing))), None)
    if marks is None:
        if opened is False:
            return text, None
        closed = [marks for marks in known if marks.closing in text]
        if not closed:
            return (None, text.strip()) if opened is True else (text, None)
        marks = min(closed, key=lambda marks: text.index(marks.closing))
        begins = text
    thought, closing, answer = begins.removeprefix(marks.opening).partition(marks.closing)
    return (marks.answer(answer) if closing else None), marks.bare(thought)


OUT_OF_TOKENS = ("length", "max_tokens")
"""Finish reasons of an answer that the limit of tokens ended."""
MARKED = ReasoningConfig()
"""Nothing is said of a thought, and one is known by its marks."""
FEWEST_STOPS = 4
"""Stop sequences that every endpoint takes: OpenAI's limit."""
LONGEST_CHARACTER = 4
"""Tokens that one character makes at most: a byte of its UTF-8 each."""


@dataclass(frozen=True)
class TokenPrompts:
    """How the prompts of a model with a tokenizer go to a completions endpoint: as lm-evaluation-harness
    sends them.

    As token ids with nothing put before them, or as text where the server takes no ``ids``. Longer ones than
    ``room`` tokens lose their beginning (None: they go whole).
    """

    tokenizer: Tokenizer
    room: int | None = None
    ids: bool = True

    def encode(self, prompt: str) -> str | list[list[int]]:
        """The prompt as it goes into the body."""
        if not self.ids and (self.room is None or len(prompt) <= self.room // LONGEST_CHARACTER):
            return prompt
        tokens = self.tokenizer.encode(prompt)
        cut = tokens if self.room is None else tokens[-self.room :]
        if self.ids and cut:
            return [cut]
        return prompt if len(cut) == len(tokens) else self.tokenizer.decode(cut)


class Generation:
    """Text from chat or completions: one request a call, or the samples of one prompt (``n``)."""

    def __init__(
        self,
        model: str,
        config: EndpointConfig | DemoConfig,
        params: SampleParams,
        prompts: TokenPrompts | None = None,
        reasoning: ReasoningConfig = MARKED,
        media: ReadMedia = refuse_media,
    ) -> None:
        self._media = media
        self._prompts = prompts
        self._chat = config.api == "chat"
        extra = config.extra_body if isinstance(config, EndpointConfig) else {}
        stream = isinstance(config, EndpointConfig) and config.stream
        streaming = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        sent = params.sent()
        if not self._chat and sent.pop("logprobs", None):
            sent["logprobs"] = sent.pop("top_logprobs", 1)
        if not self._chat and prompts is not None and prompts.tokenizer.end is not None:
            sent["stop"] = _with_end(sent.get("stop", ()), prompts.tokenizer.end)
        told = reasoning.sent(getattr(config, "base_url", ""))
        self._body = {"model": model, **sent, **streaming, **extra, **told}
        # A completion is whatever text follows: only who says that a thought begins there is believed.
        self._opened = reasoning.opened if self._chat or reasoning.opened is True else None
        self._marks = marks_of(reasoning.marks)
        # One token with its alternatives: they are what is asked for, and white space is an answer, too.
        self._one_token = bool(sent.get("logprobs")) and 1 in (
            params.max_tokens,
            params.max_completion_tokens,
        )
        self._cut: list[str] = []
        """Stop sequences that the endpoint does not take: the answer is cut at them here."""

    def keep_stops(self, most: int) -> Sequence[str]:
        """From now on sends the first ``most`` stop sequences and cuts answers at the others; returns these.

        The tokenizer's end, which stands last, is one of those sent.
        """
        stops = list(self._body.get("stop") or ())
        if len(stops) <= most:
            return ()
        end = self._prompts.tokenizer.end if self._prompts is not None else None
        last = [end] if end in stops else []
        first = [*[stop for stop in stops if stop != end][: most - len(last)], *last]
        self._cut = [stop for stop in stops if stop not in first]
        self._body = {**self._body, "stop": first}
        return self._cut

    def calls(self, requests: Sequence[Request]) -> list[Call]:
        """The one call for samples of one prompt."""
        first = requests[0]
        body = dict(self._body)
        if first.seed is not None:
            body["seed"] = first.seed
        if len(requests) > 1:
            body["n"] = len(requests)
        if self._chat:
            asked = (
                chat_body(first.prompt)
                if first.chat
                else {"messages": [{"role": "user", "content": first.prompt}]}
            )
            messages = sent_messages(asked["messages"], self._media)
            return [Call("chat/completions", {**body, **asked, "messages": messages}, media_size(messages))]
        prompt = _as_text(first)
        return [
            Call("completions", {**body, "prompt": self._prompts.encode(prompt) if self._prompts else prompt})
        ]

    def answers(
        self, requests: Sequence[Request], replies: Sequence[Reply], attempts: int
    ) -> list[KeptAnswer]:
        """One answer a request, in order; raises MalformedBody when the reply holds something else."""
        (reply,) = replies
        choices = reply.body.get("choices")
        if not isinstance(choices, list) or len(choices) < len(requests):
            got = len(choices) if isinstance(choices, list) else "no list of"
            raise MalformedBody(f"the answer has {got} choices where {len(requests)} were asked for")
        shares = usage_of(reply.body, len(requests))
        answers = []
        for request, choice, usage in zip(requests, choices, shares, strict=False):
            if not isinstance(choice, Mapping):
                raise MalformedBody("a choice of the answer is not a JSON object")
            answers.append(
                self._answer(request, choice, {**usage, **provenance(reply), "attempts": attempts})
            )
        return answers

    def _answer(self, request: Request, choice: Mapping[str, Any], facts: dict[str, Any]) -> KeptAnswer:
        """What a choice says, by the table of docs/operations.md; raises EmptyAnswer and MalformedBody."""
        facts["finish_reason"] = finish = text_or_none(choice.get("finish_reason"))
        facts["logprobs"] = choice.get("logprobs")
        try:
            said = self._message(choice)
            if finish == "content_filter":
                raise ContentFiltered(f"{FILTERED}: its content filter cut the answer")
        except SettledError as error:
            return KeptAnswer(request.key, "model_error", error=str(error), **facts)
        facts["reasoning"] = said.thought
        if said.thought and facts.get("reasoning_tokens") is None:
            facts["reasoning_tokens"] = thought_tokens(said, facts.get("completion_tokens"))
        facts["tool_calls_json"] = said.calls
        if self._one_token and facts["logprobs"]:
            return KeptAnswer(request.key, "ok", response=said.text or "", **facts)
        if not (said.text or "").strip() and said.calls is None:
            if finish in OUT_OF_TOKENS:
                limit = f"the tokens were used up before the answer began (finish reason {finish!r})"
                return KeptAnswer(request.key, "cut_off", error=limit, **facts)
            if said.text is None and said.thought is None:
                raise EmptyAnswer(f"the answer has no content (finish reason {finish!r})")
        return KeptAnswer(request.key, "ok", response=self._until_stop(said.text or "", facts), **facts)

    def _until_stop(self, text: str, facts: dict[str, Any]) -> str:
        """The text up to the first stop sequence that the endpoint did not take."""
        ends = [text.find(stop) for stop in self._cut if stop in text]
        if not ends:
            return text
        facts["finish_reason"] = "stop"
        return text[: min(ends)]

    def _message(self, choice: Mapping[str, Any]) -> "Said":
        """What the choice holds; raises Refused, MalformedBody."""
        if not self._chat:
            if not isinstance(choice.get("text"), str | None):
                raise MalformedBody("a choice's text is not a string")
            return self._said(choice.get("text"), None)
        message = choice.get("message")
        if not isinstance(message, Mapping):
            raise MalformedBody("a choice of the answer has no message")
        text = message.get("content")
        if isinstance(text, list):
            text = content_text(text)
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if not isinstance(text, str | None):
            raise MalformedBody("a message's content is neither text nor null")
        if message.get("refusal"):
            raise Refused(f"{REFUSED}: {shortened(str(message['refusal']))}")
        try:
            calls = calls_text(calls_of(message))
        except ValueError as error:
            raise MalformedBody(str(error)) from error
        return self._said(text, text_or_none(reasoning), calls)

    def _said(self, text: str | None, thought: str | None, calls: str | None = None) -> "Said":
        if text is None or thought is not None or self._opened is None:
            return Said(text, thought, calls)
        return Said(*split_thought(text, self._opened, self._marks), calls)


@dataclass(frozen=True)
class Said:
    """What one choice of a reply holds: the answer's text, the thought before it, the calls of tools."""

    text: str | None
    thought: str | None
    calls: str | None


def thought_tokens(said: Said, completion_tokens: int | None) -> int | None:
    """Tokens of the thought where the server counts it and the answer together: the share of the characters
    that it has, all of them where no answer began."""
    if completion_tokens is None or said.thought is None:
        return None
    thought, answer = len(said.thought), len(said.text or "")
    return round(completion_tokens * thought / (thought + answer)) if thought else 0


def _with_end(stops: Sequence[str], end: str) -> list[str]:
    """The stop sequences and the tokenizer's end, as lm-evaluation-harness asks: some servers know the end
    only as a text.
    """
    return [*stops, *([] if end in stops else [end])]


def _as_text(request: Request) -> str:
    """A prompt for the completions API; a chat's messages, one a paragraph."""
    if not request.chat:
        return request.prompt
    chat = chat_body(request.prompt)
    contents = [message.get("content") for message in chat["messages"]]
    parts = (part for content in contents if isinstance(content, list) for part in content)
    if chat.get("tools") or any(part.get("type") != "text" for part in parts):
        raise BadRequest("completions take text alone, and this chat has tools or images: use api: chat")
    return "\n\n".join(map(content_text, contents))
