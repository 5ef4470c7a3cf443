"""What ``config`` of a model of type ``openai`` holds."""

from typing import Any, Literal

from pydantic import Field

from tasks.models.config import LOCAL_URL
from tasks.models.providers.provider import AddressedConfig


class EndpointConfig(AddressedConfig):
    """An OpenAI-compatible endpoint and how hard it may be driven."""

    base_url: str = Field(LOCAL_URL, description="address of the endpoint, up to /v1")
    api: Literal["chat", "completions"] = Field(
        "chat", description="chat: /chat/completions, messages; completions: /completions, one text"
    )
    extra_body: dict[str, Any] = Field(
        default_factory=dict, description="sent along with every request as it is"
    )
    stream: bool = Field(
        False, description="receive answers piece by piece, through proxies that cut long silences"
    )
    client: Literal["http", "openai"] = Field(
        "http",
        description="http: the thin path that reaches the endpoint's speed; openai: the official client",
    )
    batch_size: int = Field(1, ge=1, description="log-likelihood prompts per request")
