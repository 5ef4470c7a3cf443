"""The type ``demo``: the embedded server, which this process starts when something is to be asked of it.

It speaks OpenAI's protocol, and is known by its version and its parameters and not by its address.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, cast

from pydantic import Field

from metrics.config import Strict
from tasks.models.demo.options import VERSION, DemoOptions
from tasks.models.providers.in_process import InProcess
from tasks.models.providers.openai.config import EndpointConfig
from tasks.models.providers.provider import Secret, ServedModel
from tasks.models.registry import provider
from tasks.models.tokenizers import BYTES


class DemoConfig(Strict):
    """The embedded server's behaviour; the same fields as its command line."""

    error_rate: float = Field(0.2, ge=0, le=1, description="share of prompts that are worked out wrongly")
    latency: float = Field(0.0, ge=0, description="seconds before each answer")
    api: Literal["chat", "completions"] = Field("chat", description="which of its two interfaces is asked")
    max_concurrency: int = Field(64, ge=1, description="requests in flight, at most")
    timeout: float = Field(60, gt=0, description="seconds for one attempt")
    max_retries: int = Field(6, ge=0, description="attempts after the first that failed")


@provider("demo")
class Demo(InProcess):
    """The embedded server."""

    schema = DemoConfig  # type: ignore[assignment]  # it makes an endpoint's of it
    tokenizer_name = BYTES

    def facts(self) -> dict[str, Any]:
        """Its version and parameters."""
        config = self._options
        return {"version": VERSION, "error_rate": config.error_rate, "api": config.api}

    @property
    def _options(self) -> DemoConfig:
        return cast(DemoConfig, self.config)

    @contextmanager
    def served(self, _secret: Secret | None) -> Iterator[ServedModel[EndpointConfig]]:
        """At the process's one server for equal options, which runs as long as it is asked."""
        from tasks.models.demo.server import shared_server

        config, name = self._options, self.model.served_name
        options = DemoOptions(model=name, error_rate=config.error_rate, latency=config.latency)
        with shared_server(options) as base_url:
            yield ServedModel(base_url, name, self.endpoint.model_copy(update={"base_url": base_url}))
