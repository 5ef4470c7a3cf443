"""Thoughts: the marks of families, what is sent about them, and whether a chat template opens them."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
from pydantic import ValidationError

from tasks.models.config import THOUGHT_BUDGETS, BudgetKind, ModelConfig, ReasoningConfig, SampleParams
from tasks.models.identity import RequestExpansion, model_identity
from tasks.models.providers.openai.config import EndpointConfig
from tasks.models.providers.openai.generation import FAMILIES, Chat, marks_of, split_thought
from tasks.models.providers.provider import provider_of
from tasks.models.records import Reply, Request
from tasks.store.schemas import REQUESTS
from tests.loopback import answering

ENDPOINT = {"model": "m", "base_url": "http://localhost:1/v1"}


def settled(model: ModelConfig, ask: bool = True) -> ModelConfig:
    return provider_of(model).settled(None, ask)


def model(reasoning: dict[str, Any] | None = None, **fields: Any) -> ModelConfig:
    config = {**ENDPOINT, **fields.pop("config", {})}
    said = {} if reasoning is None else {"reasoning": reasoning}
    return ModelConfig.model_validate({"name": "a", "config": config, **said, **fields})


HARMONY = "<|channel|>analysis<|message|>2 + 2<|end|><|start|>assistant<|channel|>final<|message|>4<|return|>"
SPLITS = [
    ("auto", "<think>2 + 2</think>\n\n4", ("4", "2 + 2")),
    ("auto", " \n<think>2 +", (None, "2 +")),
    ("auto", "[THINK]2 + 2[/THINK]4", ("4", "2 + 2")),
    ("auto", "2 + 2[/THINK]4", ("4", "2 + 2")),
    ("auto", "<seed:think>2 + 2</seed:think>4", ("4", "2 + 2")),
    ("auto", "◁think▷2 + 2◁/think▷4", ("4", "2 + 2")),
    ("auto", HARMONY, ("4", "2 + 2")),
    ("auto", "<|channel|>analysis<|message|>2 +", (None, "2 +")),
    ("auto", "<|channel|>final<|message|>4<|return|>", ("4", "")),
    (
        "auto",
        "<|START_THINKING|>2 + 2<|END_THINKING|><|START_RESPONSE|>4<|END_RESPONSE|>",
        ("4", "2 + 2"),
    ),
    ("auto", "<|inner_prefix|>2 + 2<|inner_suffix|>4", ("4", "2 + 2")),
    # What prompts ask for is part of the answer, until the config says that it is the model's own mark.
    (
        "auto",
        "<reasoning>2 + 2</reasoning><answer>4</answer>",
        ("<reasoning>2 + 2</reasoning><answer>4</answer>", None),
    ),
    ("reasoning", "<reasoning>2 + 2</reasoning>4", ("4", "2 + 2")),
    ("thought", "<thought>\n2 + 2\n</thought>\n\n4", ("4", "2 + 2")),
    ("granite", "Here is my thought process: 2 + 2\n\nHere is my response:\n4", ("4", "2 + 2")),
    ("auto", "Here is my response: 4", ("Here is my response: 4", None)),
    ("hunyuan", "<think>\n2 + 2\n</think>\n<answer>\n4\n</answer>", ("4", "2 + 2")),
    ("ernie", "2 + 2</think>\n\n<response>\n4\n</response>\n", ("4", "2 + 2")),
    ("mistral", "<think>2 + 2</think>4", ("<think>2 + 2</think>4", None)),
    (("<<", ">>"), "<<2 + 2>>4", ("4", "2 + 2")),
    (("<<", ">>"), "<<2 +", (None, "2 +")),
    (("---", "---"), "2 + 2---4", ("4", "2 + 2")),
    (("THINK", "THINK END"), "2 + 2THINK END4", ("4", "2 + 2")),
    # A mark that closes what the text itself opened says nothing of the template.
    ("auto", "4 is what <think> means </think>", ("4 is what ", "means")),
    ("auto", "Well: <think>2 + 2</think>\n\n4", ("Well: 4", "2 + 2")),
    ("auto", "Well: [THINK]2 + 2[/THINK]4", ("Well: 4", "2 + 2")),
    ("auto", "I write <think> and </think>. 2 + 2</think>4", ("4", "I write <think> and </think>. 2 + 2")),
    ("auto", "2 + 2</think>4 <think>or</think> so", ("4 <think>or</think> so", "2 + 2")),
    ("auto", "2 + 2</think>4 </think>", ("4 </think>", "2 + 2")),
    ("auto", "4. <think>Or", ("4. <think>Or", None)),
    ("auto", "The mark [THINK] is odd</think>4", ("4", "The mark [THINK] is odd")),
]


@pytest.mark.parametrize(("named", "text", "expected"), SPLITS, ids=[f"{s[0]} {s[1][:16]}" for s in SPLITS])
def test_thoughts_are_known_by_the_marks_of_their_family(named, text, expected):
    assert split_thought(text, known=marks_of(named)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I begin with <think>. 2 + 2</think>4", ("4", "I begin with <think>. 2 + 2")),
        ("I write <think> and </think>. 2 + 2</think>4", ("4", "I write <think> and </think>. 2 + 2")),
        ("I write <think> and", (None, "I write <think> and")),
    ],
)
def test_a_thought_that_the_template_opens_may_quote_marks(text, expected):
    assert split_thought(text, opened=True) == expected


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_every_family_keeps_thought_and_answer_apart_cut_or_not(family, finish):
    marks, config = FAMILIES[family], EndpointConfig()
    codec = Chat("m", config, SampleParams(), reasoning=ReasoningConfig(marks=family))

    def answer(content: str) -> Any:
        choice = {"message": {"content": content}, "finish_reason": finish}
        usage = {"prompt_tokens": 1, "completion_tokens": 30}
        reply = Reply({"choices": [choice], "usage": usage}, 0.1)
        return codec.answers([Request(b"k", "generate", "p")], [reply], 1)[0]

    whole = answer(f"{marks.opening}because{marks.closing}four")
    assert (whole.status, whole.response, whole.reasoning) == ("ok", "four", "because")
    assert whole.reasoning_tokens == round(30 * 7 / 11)  # the server counts them together
    cut = answer(f"{marks.opening}because")
    assert (cut.status, cut.reasoning) == ({"stop": "ok", "length": "cut_off"}[finish], "because")
    assert cut.reasoning_tokens == 30


def test_a_servers_own_count_of_the_thought_is_kept():
    usage = {"completion_tokens": 30, "completion_tokens_details": {"reasoning_tokens": 4}}
    choice = {"message": {"content": "<think>because</think>four"}, "finish_reason": "stop"}
    codec = Chat("m", EndpointConfig(), SampleParams())
    (answer,) = codec.answers(
        [Request(b"k", "generate", "p")], [Reply({"choices": [choice], "usage": usage}, 0.1)], 1
    )
    assert answer.reasoning_tokens == 4


SENT = [
    ({"effort": "low"}, "", {"reasoning_effort": "low"}),
    (
        {"template_kwargs": {"enable_thinking": False}},
        "",
        {"chat_template_kwargs": {"enable_thinking": False}},
    ),
    ({"budget_tokens": 512}, "http://localhost:8000/v1", {"thinking_token_budget": 512}),
    ({"budget_tokens": 0, "budget_as": "llama.cpp"}, "", {"thinking_budget_tokens": 0}),
    (
        {"budget_tokens": 512, "budget_as": "sglang", "template_kwargs": {"enable_thinking": True}},
        "",
        {"chat_template_kwargs": {"enable_thinking": True, "thinking_budget": 512}},
    ),
    ({"budget_tokens": 512}, "https://openrouter.ai/api/v1", {"reasoning": {"max_tokens": 512}}),
    (
        {"budget_tokens": 512},
        "https://api.anthropic.com/v1",
        {"thinking": {"type": "enabled", "budget_tokens": 512}},
    ),
    (
        {"budget_tokens": 512},
        "https://generativelanguage.googleapis.com/v1beta/openai",
        {"extra_body": {"google": {"thinking_config": {"thinking_budget": 512}}}},
    ),
    (
        {"budget_tokens": 512},
        "https://dashscope.aliyuncs.com/compatible-mode/v1",
        {"enable_thinking": True, "thinking_budget": 512},
    ),
    ({"budget_tokens": 512}, "https://evil-openrouter.ai/v1", {"thinking_token_budget": 512}),
    ({"budget_tokens": 9, "budget_as": "nim"}, "", {"nvext": {"max_thinking_tokens": 9}}),
]


@pytest.mark.parametrize(("said", "address", "fields"), SENT)
def test_what_is_said_of_thoughts_goes_into_the_request_and_into_its_key(said, address, fields):
    config = EndpointConfig(base_url=address or "http://localhost:1/v1")
    codec = Chat("m", config, SampleParams(), reasoning=ReasoningConfig(**said))
    (call,) = codec.calls([Request(b"k", "generate", "p")])
    plain = Chat("m", config, SampleParams()).calls([Request(b"k", "generate", "p")])[0]
    assert call.body == {**plain.body, **fields}
    at = {"config": {"base_url": config.base_url}}
    assert model_identity(model(said, **at)) == {**model_identity(model(**at)), "reasoning": {"sent": fields}}


def test_every_kind_of_server_that_a_config_may_name_has_a_budget():
    assert set(THOUGHT_BUDGETS) == set(get_args(BudgetKind))


def test_marks_read_kept_answers_anew_and_ask_nothing(bench, batch_of, script):
    choice = {"message": {"content": "<a>2 + 2</a>4"}, "finish_reason": "stop"}
    at = {"config": {"base_url": script(lambda _: (200, {}, {"choices": [choice]}))}}
    entries = [model(**at), *(model({"marks": marks}, **at) for marks in (("<a>", "</a>"), "think"))]
    told = [bench.ask(entry, batch_of([{}])) for entry in entries]
    assert [outcome.tally.sent for outcome in told] == [1, 0, 0]
    assert [row["response"] for outcome in told for row in outcome.rows] == [
        "<a>2 + 2</a>4",
        "4",
        "<a>2 + 2</a>4",
    ]
    plain, marked, think = (model_identity(entry) for entry in entries)
    assert marked == {**plain, "reasoning": {"marks": ["<a>", "</a>"]}}  # rows that are read so are others
    assert think == {**plain, "reasoning": {"marks": "think"}}


REFUSED = [
    ({"reasoning": {"budget_as": "vllm"}}, "budget_as: belongs to budget_tokens, and there is none"),
    ({"reasoning": {"effort": "low"}, "config": {"api": "completions"}}, "for a chat template"),
    (
        {"reasoning": {"effort": "low"}, "sample_params": {"reasoning_effort": "high"}},
        "reasoning_effort says it already",
    ),
    (
        {"reasoning": {"budget_tokens": 5}, "config": {"extra_body": {"thinking_token_budget": 6}}},
        "extra_body.thinking_token_budget: reasoning says it already",
    ),
    ({"reasoning": {"marks": "qwen"}}, "marks"),
    ({"reasoning": {"marks": ["<a>", ""]}}, "two texts that are not empty"),
    ({"type": "replay", "config": {"path": "x"}, "reasoning": {"effort": "low"}}, "asked nothing"),
]


@pytest.mark.parametrize(("fields", "said"), REFUSED)
def test_what_cannot_be_sent_is_refused(fields, said):
    with pytest.raises(ValidationError, match=said):
        ModelConfig.model_validate({"name": "a", **fields})


GOLDEN: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[str]]] = [
    ({"config": ENDPOINT}, {}, {}, ["c57a6f7f5f0fcd28"]),
    (
        {"config": {**ENDPOINT, "extra_body": {"top_a": 1}}},
        {"seed": 3, "num_samples": 2, "temperature": 0.5, "reasoning_effort": "low"},
        {},
        ["c558cabffacaebb3", "1512d9a1c145a482"],
    ),
    (
        {"config": {**ENDPOINT, "api": "completions"}},
        {},
        {
            "kind": "loglikelihood",
            "prompts": ["p", "p"],
            "continuations": [" a", " b"],
            "unconditional": [" a"],
        },
        ["b4f0a2bbea3a7ef4", "1397265b0a4b1610", "63534bbc2ae531e0"],
    ),
    (
        {"config": ENDPOINT, "reasoning": {"opened": True}},
        {},
        {"chat": True, "prompts": ['[{"role":"user","content":"p"}]']},
        ["83e937730f6c6fcc"],
    ),
    ({"type": "demo"}, {"max_tokens": 9}, {}, ["2ce673ba97778a56"]),
]


@pytest.mark.parametrize(("fields", "sampling", "row", "expected"), GOLDEN)
def test_keys_of_what_was_asked_before_are_what_they_were(fields, sampling, row, expected):
    request = {
        "item_id": "i", "doc_id": 0, "item_digest": "d", "cluster": None, "prompt_template": "t",
        "kind": "generate", "chat": False, "prompts": ["p"], "continuations": [""], "unconditional": [],
        "references_json": "[]", "gold": [], "choices": [], "doc_json": "{}", "first_sample": 0, **row,
    }  # fmt: skip
    batch = pa.RecordBatch.from_pylist([request], schema=REQUESTS)
    asked = ModelConfig.model_validate({"name": "a", **fields})
    (found,) = RequestExpansion.of(asked, SampleParams(**sampling)).rows(batch)
    assert [request.key.hex()[:16] for request in found] == expected


QWEN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n"
    "{% endif %}{% endif %}"
)


@pytest.mark.parametrize("where", ["tokenizer_config.json", "chat_template.jinja"])
@pytest.mark.parametrize(
    ("template", "said", "opened"),
    [
        (QWEN, {"opened": "auto"}, True),
        (QWEN, {"template_kwargs": {"enable_thinking": False}}, "auto"),
        (QWEN, {"marks": "mistral"}, "auto"),
        (QWEN, {"opened": False}, False),
        ("{{ messages[0].content }}[THINK]", {"marks": "mistral"}, True),
        ("{{ raise_exception('no') }}", {"opened": "auto"}, "auto"),
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}<think>", {"opened": "auto"}, "auto"),
    ],
)
def test_the_tokenizers_chat_template_says_who_opens_the_thought(tmp_path, where, template, said, opened):
    if where.endswith(".json"):
        (tmp_path / where).write_text(
            json.dumps({"chat_template": template, "eos_token": {"content": "</s>"}})
        )
    else:
        (tmp_path / where).write_text(template)
    asked = settled(model(said, tokenizer=str(tmp_path)), ask=False)
    assert asked.reasoning.opened == opened


class Server:
    """A chat server with one answer, and what llama.cpp, vLLM or neither shows of its template."""

    def __init__(self, kind: str, content: str, finish: str = "stop") -> None:
        self.paths: list[str] = []
        self.key: str | None = None
        outer = self
        shown: dict[str, Callable[[], dict[str, Any]]] = {
            "/v1/chat/completions": lambda: {
                "choices": [{"message": {"content": content}, "finish_reason": finish}]
            }
        }
        if kind == "llama.cpp":
            shown["/apply-template"] = lambda: {"prompt": "<|user|>hi<|assistant|><think>\n"}
        if kind == "vllm":
            shown["/tokenize"] = lambda: {"tokens": [1, 2], "token_strs": ["assistant", "Ċ", "<think>", "Ċ"]}

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                outer.paths.append(self.path)
                outer.key = self.headers.get("Authorization")
                found = shown.get(self.path)
                body = json.dumps(found() if found else {"error": {"message": "not found"}}).encode()
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Nothing: the tests look at what was asked."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    monkeypatch.setenv("NIGHTJAR_HOME", str(tmp_path / "home"))
    with ExitStack() as stack:

        def make(*arguments: str) -> Server:
            made = Server(*arguments)
            stack.enter_context(answering(made.server))
            return made

        yield make


@pytest.mark.parametrize(
    ("kind", "content", "finish", "opened", "last"),
    [
        ("llama.cpp", "43", "stop", True, "/apply-template"),
        ("vllm", "43", "stop", True, "/tokenize"),
        ("plain", "17 + 26 is</think>43", "stop", True, "/v1/chat/completions"),
        ("plain", "<think>17 + 26</think>43", "stop", "auto", "/v1/chat/completions"),
        ("plain", "Well: <think>17 + 26</think>43", "stop", "auto", "/v1/chat/completions"),
        ("plain", "43", "stop", "auto", "/v1/chat/completions"),
        ("plain", "17 and 26 make", "length", "auto", "/v1/chat/completions"),
    ],
)
def test_a_server_shows_once_who_opens_the_thought(
    server, caplog, monkeypatch, kind, content, finish, opened, last
):
    monkeypatch.setenv("OPENING_KEY", "sk-0123456789")
    asked = server(kind, content, finish)
    entry = model({"opened": "auto"}, config={"base_url": asked.url, "api_key_env": "OPENING_KEY"})
    assert settled(entry, ask=False).reasoning.opened == "auto"
    assert asked.paths == []  # a plan sends nothing
    assert settled(entry).reasoning.opened == opened
    assert (asked.paths[-1], asked.key) == (last, "Bearer sk-0123456789")
    before = len(asked.paths)
    assert settled(entry).reasoning.opened == settled(entry, ask=False).reasoning.opened == opened
    assert len(asked.paths) == before  # remembered
    assert ("set reasoning.opened" in caplog.text) == (finish == "length")


def test_a_model_of_which_nothing_is_said_is_asked_nothing_beforehand(server):
    asked = server("llama.cpp", "43")
    entry = model(config={"base_url": asked.url})
    assert settled(entry) is entry
    assert asked.paths == []


def test_a_server_that_is_away_settles_nothing_and_is_asked_again(server, caplog):
    asked = server("llama.cpp", "43")
    entry = model({"opened": "auto"}, config={"base_url": asked.url})
    asked.server.shutdown()
    asked.server.server_close()
    assert settled(entry) is entry
    assert "is not known" in caplog.text
