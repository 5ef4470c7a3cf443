"""The codec of generations: makes calls to chat and completions of requests, and answers of their replies.

It says when a reply is an answer, an error of the model or worth another attempt. The connection chooses
it, the engine uses it.

A model's thought is told from its answer in one text by the marks of the model's family. Chat templates
of several families open the thought themselves, so that the text holds its end alone, or nothing of it
where the tokens were used up before; ``probes`` looks for the marks at the end of a rendered prompt.
"""

import re
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from tasks.messages.calls import calls_of, calls_text, distinct_ids, nine_characters
from tasks.messages.chat import chat_body, content_text
from tasks.messages.endings import ending
from tasks.messages.media import ReadMedia, media_size, refuse_media, sent_messages
from tasks.models.config import ReasoningConfig, SampleParams
from tasks.models.errors import (
    FILTERED,
    REFUSED,
    BadRequest,
    ContentFiltered,
    EmptyAnswer,
    MalformedBody,
    Refused,
    ServerFault,
    SettledError,
    shortened,
)
from tasks.models.extra import with_extra, with_own
from tasks.models.providers.openai.choices import ordered_choices
from tasks.models.providers.openai.config import EndpointConfig
from tasks.models.records import Answer, Call, Codec, Reply, Request
from tasks.models.tokenizers import Tokenizer
from tasks.models.usage import text_or_none, usage_of
from tasks.models.wire import body_error, thinking_text

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

    def end_in(self, text: str) -> int | None:
        """Where the first closing mark stands that closes nothing which the text opens; None: there is
        none."""
        depth, longest_first = 0, sorted((self.opening, self.closing), key=len, reverse=True)
        for mark in re.finditer("|".join(map(re.escape, longest_first)), text):
            if mark[0] == self.closing and depth == 0:
                return mark.start()
            depth += 1 if mark[0] == self.opening else -1
        return None

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
    if marks is not None:
        thought, closing, answer = begins.removeprefix(marks.opening).partition(marks.closing)
        return (marks.answer(answer) if closing else None), marks.bare(thought)
    if opened is False:
        return text, None
    closed = [marks for marks in known if marks.closing in text]
    if not closed:
        return (None, text.strip()) if opened is True else (text, None)
    ends = {end: marks for marks in closed if (end := marks.end_in(text)) is not None}
    if not ends and opened is True:  # it quotes the mark that the template has written
        ends = {text.index(marks.closing): marks for marks in closed}
    if ends:
        marks = ends[end := min(ends)]
        return marks.answer(text[end + len(marks.closing) :]), marks.bare(text[:end])
    # The text opens each thought that it closes: the template does not, and what stands before is said.
    marks = min(closed, key=lambda marks: text.index(marks.opening))
    before, _, rest = text.partition(marks.opening)
    thought, _, answer = rest.partition(marks.closing)
    return before + marks.answer(answer), marks.bare(thought)


MARKED = ReasoningConfig()
"""Nothing is said of a thought, and one is known by its marks."""
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


class Generation(Codec):
    """Text: one request a call, or the samples of one prompt (``n``)."""

    def __init__(
        self, model: str, config: EndpointConfig, params: SampleParams, reasoning: ReasoningConfig = MARKED
    ) -> None:
        streaming = {"stream": True, "stream_options": {"include_usage": True}} if config.stream else {}
        sampled, told = self.sampled(params), reasoning.sent(config.base_url)
        self._body = with_extra({"model": model, **sampled, **streaming, **told}, config.extra_body)
        self._opened: Opened | None = reasoning.opened
        self._marks = marks_of(reasoning.marks)
        # One token with its alternatives: they are what is asked for, and white space is an answer, too.
        self._one_token = bool(sampled.get("logprobs")) and 1 in (
            params.max_tokens,
            params.max_completion_tokens,
        )
        self._cut: list[str] = []
        """Stop sequences beyond what the endpoint takes: the answer is cut at them here."""
        self.refused: Collection[str] = ()
        """Fields that the endpoint does not take at all."""

    end: str | None = None
    """The stop sequence that is always sent, the last one."""

    def sampled(self, params: SampleParams) -> dict[str, Any]:
        """The sampling parameters as this interface takes them."""
        return params.sent()

    @abstractmethod
    def call(self, request: Request, body: Mapping[str, Any]) -> Call:
        """The call of a request, with the fields that all calls have."""

    @abstractmethod
    def message(self, choice: Mapping[str, Any]) -> "ParsedChoice":
        """What a choice holds; raises Refused, MalformedBody."""

    def keep_stops(self, most: int) -> Sequence[str]:
        """From now on sends the first ``most`` stop sequences and cuts answers at the others; returns these.

        The one that is always sent, which stands last, is one of those.
        """
        stops = list(self._body.get("stop") or ())
        if len(stops) <= most:
            return ()
        last = [self.end] if self.end in stops else []
        first = [*[stop for stop in stops if stop != self.end][: most - len(last)], *last]
        self._cut = [stop for stop in stops if stop not in first]
        self._body = {**self._body, "stop": first}
        return self._cut

    def calls(self, requests: Sequence[Request]) -> list[Call]:
        """The one call that asks for the samples of one prompt."""
        first = requests[0]
        own: dict[str, Any] = {} if first.seed is None else {"seed": first.seed}
        if len(requests) > 1:
            own["n"] = len(requests)
        return [self.call(first, with_own(self._body, own))]

    def parts(self, requests: Sequence[Request], replies: Sequence[Reply]) -> list[Mapping[str, Any]]:
        """Each request's choice and the usage, with the stop sequences that the endpoint did not take."""
        (reply,) = replies
        choices = ordered_choices(reply.body, len(requests), alike=True)
        beside: dict[str, Any] = {"usage": reply.body.get("usage")}
        if reply.headers:
            beside["headers"] = reply.headers
        if cut := [*self._cut, *(self._body.get("stop", ()) if "stop" in self.refused else ())]:
            beside["cut"] = cut
        if len(requests) == 1:
            return [{"choice": choices[0], **beside}]
        together = len(requests)
        return [
            {"choice": choice, **beside, "share": [place, together]} for place, choice in enumerate(choices)
        ]

    def read(self, request: Request, part: Mapping[str, Any]) -> Answer:
        """What a choice says, by the table of docs/replies.md; raises EmptyAnswer, MalformedBody and
        ServerFault."""
        choice = part["choice"]
        if not isinstance(choice, Mapping):
            raise MalformedBody("a choice of the answer is not a JSON object")
        finish = text_or_none(choice.get("finish_reason"))
        logprobs = choice.get("logprobs")
        place, together = part.get("share", (0, 1))
        facts: dict[str, Any] = {
            **usage_of(part, together)[place],
            "finish_reason": finish,
            "logprobs": logprobs,
        }
        try:
            if fault := body_error(choice):
                raise fault
            if ending(finish) == "broken":
                raise ServerFault(f"the server broke the answer off (finish reason {finish!r})")
            said = self.message(choice)
            if ending(finish) == "filtered":
                raise ContentFiltered(f"{FILTERED}: its content filter cut the answer")
        except SettledError as error:
            return Answer("refused", error=str(error), **facts)
        facts |= {"reasoning": said.thought, "tool_calls_json": said.calls}
        if said.thought and facts["reasoning_tokens"] is None:
            facts["reasoning_tokens"] = thought_tokens(said, facts["completion_tokens"])
        if self._one_token and logprobs:
            return Answer("ok", said.text or "", **facts)
        if not (said.text or "").strip() and said.calls is None:
            if ending(finish) == "limit":
                limit = f"the tokens were used up before the answer began (finish reason {finish!r})"
                return Answer("cut_off", error=limit, **facts)
            if said.text is None and said.thought is None:
                raise EmptyAnswer(f"the answer has no content (finish reason {finish!r})")
        text = said.text or ""
        ends = [text.find(stop) for stop in part.get("cut", ()) if stop in text]
        if ends:
            return Answer("ok", text[: min(ends)], **{**facts, "finish_reason": "stop"})
        return Answer("ok", text, **facts)

    def parsed(self, text: str | None, thought: str | None, calls: str | None = None) -> "ParsedChoice":
        """The parts of a choice, the thought taken out of the text where it did not come apart."""
        if text is None or thought is not None or self._opened is None:
            return ParsedChoice(text, thought, calls)
        return ParsedChoice(*split_thought(text, self._opened, self._marks), calls)


class Chat(Generation):
    """Text from messages."""

    def __init__(
        self,
        model: str,
        config: EndpointConfig,
        params: SampleParams,
        reasoning: ReasoningConfig = MARKED,
        media: ReadMedia = refuse_media,
    ) -> None:
        super().__init__(model, config, params, reasoning)
        self._media = media

    def call(self, request: Request, body: Mapping[str, Any]) -> Call:
        """A prompt that is no chat is what a user says."""
        asked = chat_body(request.prompt, request.chat)
        messages = list(distinct_ids(sent_messages(asked["messages"], self._media), nine_characters))
        return Call("chat/completions", with_own(body, {**asked, "messages": messages}), media_size(messages))

    def message(self, choice: Mapping[str, Any]) -> "ParsedChoice":
        """Content, thought and calls of tools."""
        message = choice.get("message")
        if not isinstance(message, Mapping):
            raise MalformedBody("a choice of the answer has no message")
        text, refusal = message.get("content"), message.get("refusal")
        reasoning = message.get("reasoning_content") or message.get("reasoning") or thinking_text(text)
        if isinstance(text, list):
            said = [part["refusal"] for part in text if isinstance(part, Mapping) and part.get("refusal")]
            refusal, text = refusal or " ".join(map(str, said)), content_text(text)
        if not isinstance(text, str | None):
            raise MalformedBody("a message's content is neither text nor null")
        if refusal:
            raise Refused(f"{REFUSED}: {shortened(str(refusal))}")
        try:
            calls = calls_text(calls_of(message))
        except ValueError as error:
            raise MalformedBody(str(error)) from error
        return self.parsed(text, text_or_none(reasoning), calls)


class Completions(Generation):
    """Text that follows a text."""

    def __init__(
        self,
        model: str,
        config: EndpointConfig,
        params: SampleParams,
        reasoning: ReasoningConfig = MARKED,
        prompts: TokenPrompts | None = None,
    ) -> None:
        self.params = params
        self._made_of = model, config, params, reasoning
        self._prompts = prompts
        self.end = None if prompts is None else prompts.tokenizer.end
        super().__init__(model, config, params, reasoning)
        # A completion is whatever text follows: only who says that a thought begins there is believed.
        self._opened = True if reasoning.opened is True else None

    def with_prompts(self, prompts: TokenPrompts) -> "Completions":
        """The same for prompts that go as tokens."""
        return Completions(*self._made_of, prompts)

    def sampled(self, params: SampleParams) -> dict[str, Any]:
        """Log-probabilities are a number here; the tokenizer's end is among the stop sequences."""
        sent = params.sent()
        if sent.pop("logprobs", None):
            sent["logprobs"] = sent.pop("top_logprobs", 1)
        # As lm-evaluation-harness asks: some servers know the end only as a text.
        if self.end is not None and self.end not in sent.get("stop", ()):
            sent["stop"] = [*sent.get("stop", ()), self.end]
        return sent

    def call(self, request: Request, body: Mapping[str, Any]) -> Call:
        """The text, or its tokens where the model's tokenizer is known."""
        prompt = _as_text(request)
        own = {"prompt": self._prompts.encode(prompt) if self._prompts else prompt}
        return Call("completions", with_own(body, own))

    def message(self, choice: Mapping[str, Any]) -> "ParsedChoice":
        """The text."""
        if not isinstance(choice.get("text"), str | None):
            raise MalformedBody("a choice's text is not a string")
        return self.parsed(choice.get("text"), None)


@dataclass(frozen=True)
class ParsedChoice:
    """What one choice of a reply holds: the answer's text, the thought before it, the calls of tools."""

    text: str | None
    thought: str | None
    calls: str | None


def thought_tokens(said: ParsedChoice, completion_tokens: int | None) -> int | None:
    """Tokens of the thought where the server counts it and the answer together: the share of the characters
    that it has, all of them where no answer began."""
    if completion_tokens is None or said.thought is None:
        return None
    thought, answer = len(said.thought), len(said.text or "")
    return round(completion_tokens * thought / (thought + answer)) if thought else 0


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
