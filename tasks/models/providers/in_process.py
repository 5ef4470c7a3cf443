"""What providers share that speak OpenAI's protocol to a model in this process."""

from tasks.models.providers.openai import OpenAI
from tasks.models.providers.openai.config import EndpointConfig


class InProcess(OpenAI):
    """Reads requests and replies as ``OpenAI`` does; the config is not that of an endpoint."""

    batches = None
    serves_weights = False
    stays = True

    @property
    def endpoint(self) -> EndpointConfig:
        """An endpoint's config that says the same."""
        same = self.config.model_dump(include={"api", "max_concurrency", "timeout", "max_retries"})
        return EndpointConfig(**same)
