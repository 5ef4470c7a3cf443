"""How providers of other names are asked: by an address that speaks OpenAI's protocol, theirs or a proxy's.

``answer_to`` is what a config of ``type: anthropic`` is told, the entry that works in its place.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Provider:
    """An address, the variable that usually holds its key (None: it needs none), and an example of a model.

    ``start`` is a command that has to run first, where the address is that of a server of one's own.
    """

    base_url: str
    key: str | None
    model: str
    start: str | None = None
    api: str = "chat"


def _proxied(model: str) -> Provider:
    """A provider with a protocol of its own: LiteLLM stands between."""
    start = f"litellm --model {model} --port 4000 (pip install 'litellm[proxy]')"
    return Provider("http://localhost:4000/v1", None, model, start)


_LOCAL: Final = Provider("http://localhost:8000/v1", None, "Qwen/Qwen3-8B")
PROVIDERS: Final = {
    "anthropic": Provider("https://api.anthropic.com/v1", "ANTHROPIC_API_KEY", "claude-sonnet-4-5"),
    "gemini": Provider(
        "https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY", "gemini-2.5-flash"
    ),
    "bedrock": _proxied("bedrock/anthropic.claude-3-5-sonnet-20240620-v1:0"),
    "vertex_ai": _proxied("vertex_ai/gemini-2.5-flash"),
    "sagemaker": _proxied("sagemaker/my-endpoint"),
    "cohere": _proxied("cohere/command-r-plus"),
    "litellm": _proxied("gpt-4o-mini"),
    "azure": Provider("https://RESOURCE.openai.azure.com/openai/v1", "AZURE_OPENAI_API_KEY", "my-deployment"),
    "vllm": Provider(_LOCAL.base_url, None, _LOCAL.model, f"vllm serve {_LOCAL.model}"),
    "sglang": Provider(
        "http://localhost:30000/v1",
        None,
        _LOCAL.model,
        f"python -m sglang.launch_server --model {_LOCAL.model}",
    ),
    "hf": Provider(_LOCAL.base_url, None, _LOCAL.model, f"vllm serve {_LOCAL.model}"),
    "llama.cpp": Provider("http://localhost:8080/v1", None, "model", "llama-server -m model.gguf"),
    "ollama": Provider("http://localhost:11434/v1", None, "qwen3:8b", "ollama serve"),
    "openrouter": Provider("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", "qwen/qwen3-8b"),
    "together": Provider("https://api.together.xyz/v1", "TOGETHER_API_KEY", "Qwen/Qwen3-8B"),
    "groq": Provider("https://api.groq.com/openai/v1", "GROQ_API_KEY", "llama-3.3-70b-versatile"),
    "mistral": Provider("https://api.mistral.ai/v1", "MISTRAL_API_KEY", "mistral-small-latest"),
    "deepseek": Provider("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", "deepseek-chat"),
    "fireworks": Provider(
        "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY", "accounts/fireworks/models/qwen3-8b"
    ),
    "xai": Provider("https://api.x.ai/v1", "XAI_API_KEY", "grok-4"),
    "local-completions": Provider(_LOCAL.base_url, None, _LOCAL.model, api="completions"),
    "local-chat-completions": _LOCAL,
    "openai-completions": Provider(
        "https://api.openai.com/v1", "OPENAI_API_KEY", "davinci-002", api="completions"
    ),
    "openai-chat-completions": Provider("https://api.openai.com/v1", "OPENAI_API_KEY", "gpt-4o-mini"),
}
"""By the names that other programs give them."""
_SAME: Final = {
    "google": "gemini", "vertexai": "vertex_ai", "vertex": "vertex_ai", "aws": "bedrock",
    "aws-bedrock": "bedrock", "amazon": "bedrock", "azure-openai": "azure", "azure_openai": "azure",
    "huggingface": "hf", "transformers": "hf", "llamacpp": "llama.cpp", "llama-cpp": "llama.cpp",
    "claude": "anthropic", "grok": "xai", "togetherai": "together", "together_ai": "together",
}  # fmt: skip


def provider(name: str) -> Provider | None:
    """The provider that a name means, whatever its case; None for names of none."""
    known = name.lower()
    return PROVIDERS.get(_SAME.get(known, known))


def answer_to(kind: str, name: str) -> str | None:
    """What the model ``name`` of ``type: kind`` is told: two lines with the entry that works; None where the
    type is no provider's name."""
    found = provider(kind)
    if found is None:
        return None
    return f"'{kind}' is asked in OpenAI's protocol{_first(found)}; write\n  {entry(found, name)}"


def entry(found: Provider, name: str) -> str:
    """The entry of ``models:`` that asks the provider, in one line of YAML."""
    api = "" if found.api == "chat" else f", api: {found.api}"
    key = "" if found.key is None else f", api_key_env: {found.key}"
    return f'{{name: {name}, config: {{model: "{found.model}", base_url: "{found.base_url}"{api}{key}}}}}'


def flags_for(name: str) -> str | None:
    """The flags for a model named ``provider/model`` as other programs name it; None where it is not one."""
    kind, slash, model = name.partition("/")
    found = provider(kind) if slash and kind.lower() not in _PUBLISHERS else None
    if found is None:
        return None
    named = name if found.start and found.start.startswith("litellm") else model
    key = "" if found.key is None else f" --api-key-env {found.key}"
    api = "" if found.api == "chat" else f" --api {found.api}"
    return f"--model {named} --base-url {found.base_url}{api}{key}"


_PUBLISHERS: Final = frozenset(
    {"google", "cohere", "amazon", "together", "deepseek", "mistral", "huggingface"}
)
"""Names that also stand before the slash of open weights."""


def _first(found: Provider) -> str:
    return f", after {found.start}" if found.start else ""


THOUGHT_BUDGETS: Final[Mapping[str, tuple[str, ...]]] = {
    "vllm": ("thinking_token_budget",),
    "llama.cpp": ("thinking_budget_tokens",),
    "sglang": ("chat_template_kwargs", "thinking_budget"),
    "nim": ("nvext", "max_thinking_tokens"),
    "openrouter": ("reasoning", "max_tokens"),
    "anthropic": ("thinking", "budget_tokens"),
    "gemini": ("extra_body", "google", "thinking_config", "thinking_budget"),
    "dashscope": ("thinking_budget",),
}
"""Where in a request each kind of server takes how many tokens a thought may have."""
_BESIDE_BUDGET: Final[Mapping[str, Mapping[str, Any]]] = {
    "anthropic": {"thinking": {"type": "enabled"}},
    "dashscope": {"enable_thinking": True},
}
"""What has to be said beside the budget."""
_BUDGET_HOSTS: Final = {
    "openrouter.ai": "openrouter",
    "anthropic.com": "anthropic",
    "googleapis.com": "gemini",
    "aliyuncs.com": "dashscope",
    "nvidia.com": "nim",
}


def thought_budget(tokens: int, kind: str | None, base_url: str) -> dict[str, Any]:
    """The part of a request that limits a thought to so many tokens, as ``kind`` of server takes it; None:
    the kind that the address is known for, else vLLM's.

    >>> thought_budget(512, "openrouter", ""), thought_budget(512, None, "http://localhost:8000/v1")
    ({'reasoning': {'max_tokens': 512}}, {'thinking_token_budget': 512})
    """
    host = urlsplit(base_url).hostname or ""
    known = (name for domain, name in _BUDGET_HOSTS.items() if host == domain or host.endswith(f".{domain}"))
    kind = kind or next(known, "vllm")
    field: Any = tokens
    for name in reversed(THOUGHT_BUDGETS[kind]):
        field = {name: field}
    return merged_bodies(_BESIDE_BUDGET.get(kind, {}), field)


def merged_bodies(body: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Two parts of a request as one; where both hold a mapping, its entries lie over each other."""
    together = dict(body)
    for name, value in over.items():
        mine = together.get(name)
        both = isinstance(mine, Mapping) and isinstance(value, Mapping)
        together[name] = merged_bodies(mine, value) if both else value  # type: ignore[arg-type]  # both are
    return together
