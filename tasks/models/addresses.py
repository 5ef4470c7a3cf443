"""Where models of other programs' names are asked: by an address that speaks OpenAI's protocol, theirs or a
proxy's.

``answer_to`` is what a config of ``type: bedrock`` is told, the entry that works in its place; ``flags_for``
is the same for a command line.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Address:
    """An address, the variable that usually holds its key (None: it needs none), and an example of a model.

    ``start`` is a command that has to run first, where the address is that of a server of one's own.
    """

    base_url: str
    key: str | None
    model: str
    start: str | None = None
    api: str = "chat"


def _proxied(model: str) -> Address:
    """One with a protocol of its own: LiteLLM stands between."""
    start = f"litellm --model {model} --port 4000 (pip install 'litellm[proxy]')"
    return Address("http://localhost:4000/v1", None, model, start)


_LOCAL: Final = Address("http://localhost:8000/v1", None, "Qwen/Qwen3-8B")
ADDRESSES: Final = {
    "anthropic": Address("https://api.anthropic.com/v1", "ANTHROPIC_API_KEY", "claude-sonnet-4-5"),
    "gemini": Address(
        "https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY", "gemini-2.5-flash"
    ),
    "bedrock": _proxied("bedrock/anthropic.claude-3-5-sonnet-20240620-v1:0"),
    "vertex_ai": _proxied("vertex_ai/gemini-2.5-flash"),
    "sagemaker": _proxied("sagemaker/my-endpoint"),
    "cohere": _proxied("cohere/command-r-plus"),
    "litellm": _proxied("gpt-4o-mini"),
    "azure": Address("https://RESOURCE.openai.azure.com/openai/v1", "AZURE_OPENAI_API_KEY", "my-deployment"),
    "vllm": Address(_LOCAL.base_url, None, _LOCAL.model, f"vllm serve {_LOCAL.model}"),
    "sglang": Address(
        "http://localhost:30000/v1",
        None,
        _LOCAL.model,
        f"python -m sglang.launch_server --model {_LOCAL.model}",
    ),
    "hf": Address(_LOCAL.base_url, None, _LOCAL.model, f"vllm serve {_LOCAL.model}"),
    "llama.cpp": Address("http://localhost:8080/v1", None, "model", "llama-server -m model.gguf"),
    "ollama": Address("http://localhost:11434/v1", None, "qwen3:8b", "ollama serve"),
    "openrouter": Address("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", "qwen/qwen3-8b"),
    "together": Address("https://api.together.xyz/v1", "TOGETHER_API_KEY", "Qwen/Qwen3-8B"),
    "groq": Address("https://api.groq.com/openai/v1", "GROQ_API_KEY", "llama-3.3-70b-versatile"),
    "mistral": Address("https://api.mistral.ai/v1", "MISTRAL_API_KEY", "mistral-small-latest"),
    "deepseek": Address("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", "deepseek-chat"),
    "fireworks": Address(
        "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY", "accounts/fireworks/models/qwen3-8b"
    ),
    "xai": Address("https://api.x.ai/v1", "XAI_API_KEY", "grok-4"),
    "local-completions": Address(_LOCAL.base_url, None, _LOCAL.model, api="completions"),
    "local-chat-completions": _LOCAL,
    "openai-completions": Address(
        "https://api.openai.com/v1", "OPENAI_API_KEY", "davinci-002", api="completions"
    ),
    "openai-chat-completions": Address("https://api.openai.com/v1", "OPENAI_API_KEY", "gpt-4o-mini"),
}
"""By the names that other programs give them."""
_SAME: Final = {
    "google": "gemini", "vertexai": "vertex_ai", "vertex": "vertex_ai", "aws": "bedrock",
    "aws-bedrock": "bedrock", "amazon": "bedrock", "azure-openai": "azure", "azure_openai": "azure",
    "huggingface": "hf", "transformers": "hf", "llamacpp": "llama.cpp", "llama-cpp": "llama.cpp",
    "claude": "anthropic", "grok": "xai", "togetherai": "together", "together_ai": "together",
}  # fmt: skip


def address(name: str) -> Address | None:
    """The address that a name means, whatever its case; None for names of none."""
    known = name.lower()
    return ADDRESSES.get(_SAME.get(known, known))


def answer_to(kind: str, name: str) -> str | None:
    """What the model ``name`` of ``type: kind`` is told: two lines with the entry that works; None where the
    type is no provider's name."""
    found = address(kind)
    if found is None:
        return None
    return f"'{kind}' is asked in OpenAI's protocol{_first(found)}; write\n  {entry(found, name)}"


def entry(found: Address, name: str) -> str:
    """The entry of ``models:`` that asks the provider, in one line of YAML."""
    api = "" if found.api == "chat" else f", api: {found.api}"
    key = "" if found.key is None else f", api_key_env: {found.key}"
    return f'{{name: {name}, config: {{model: "{found.model}", base_url: "{found.base_url}"{api}{key}}}}}'


def flags_for(name: str) -> str | None:
    """The flags for a model named ``provider/model`` as other programs name it; None where it is not one."""
    kind, slash, model = name.partition("/")
    found = address(kind) if slash and kind.lower() not in _PUBLISHERS else None
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


def _first(found: Address) -> str:
    return f", after {found.start}" if found.start else ""
