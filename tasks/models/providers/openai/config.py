"""What ``config`` of a model of type ``openai`` holds."""

from typing import Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from tasks.models.config import LOCAL_URL, FileBatchConfig
from tasks.models.providers.provider import AddressedConfig

OFFICIAL_HOSTS: Final = frozenset({"api.openai.com", "eu.api.openai.com", "us.api.openai.com"})


def is_openai(base_url: str) -> bool:
    """Whether OpenAI itself answers there."""
    return urlsplit(base_url).hostname in OFFICIAL_HOSTS


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
    client: Literal["http", "openai"] | None = Field(
        None,
        description="http: the thin path that reaches the endpoint's speed; openai: the official client; "
        "default: openai at OpenAI's own address, http elsewhere",
    )
    batch_size: int = Field(1, ge=1, description="log-likelihood prompts per request")
    batch: FileBatchConfig | None = Field(
        None, description="ask by the endpoint's batches, such as {wait: 24h}; default: by single requests"
    )

    @model_validator(mode="after")
    def _run_batch_takes_chats(self) -> Self:
        if self.files is not None and self.api != "chat":
            raise ValueError("config.batch.files: vllm run-batch takes chats alone; set api: chat")
        return self

    @property
    def files(self) -> str | None:
        """The folder for files of ``vllm run-batch``; None: the endpoint is asked."""
        return None if self.batch is None else self.batch.files

    @property
    def through(self) -> Literal["http", "openai"]:
        """The client that asks. OpenAI's rate limits end a request's speed long before its client does."""
        if self.client is not None:
            return self.client
        return "openai" if is_openai(self.base_url) else "http"
