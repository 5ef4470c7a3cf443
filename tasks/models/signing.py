"""Signatures of requests to AWS: version 4, by botocore, of each request as it is sent."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Protocol

from tasks.models.errors import ModelError


class Sign(Protocol):
    """Says the headers that prove who sends a request."""

    def __call__(self, method: str, address: str, content: bytes) -> Mapping[str, str]:
        """The headers, for the address and the body exactly as they are sent."""
        ...


@dataclass(frozen=True)
class Credentials:
    """An access key of AWS; ``token`` belongs to a temporary one."""

    access: str
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, name: str, access_env: str, secret_env: str, token_env: str) -> "Credentials":
        """From the environment; raises ModelError, which names the model and the variable that is wrong."""
        held = {variable: os.environ.get(variable, "").strip() for variable in (access_env, secret_env)}
        for variable, value in held.items():
            if not value:
                raise ModelError(
                    f"model {name!r}: the environment variable {variable} is not set; set {access_env} and "
                    f"{secret_env}, or name the variable with a Bedrock API key in config.api_key_env"
                )
        token = os.environ.get(token_env, "").strip()
        for variable, value in {**held, token_env: token}.items():
            if not (value.isascii() and value.isprintable()):
                raise ModelError(
                    f"model {name!r}: the environment variable {variable} holds characters that no key has; "
                    "set it to the key alone"
                )
        return cls(held[access_env], held[secret_env], token or None)


def need_botocore(name: str, what: str) -> None:
    """Raises ModelError, which names the model, where botocore is not installed."""
    if find_spec("botocore") is None:
        raise ModelError(f"model {name!r}: {what} the extra 'bedrock': pip install -e '.[bedrock]'")


class SignatureV4:
    """Signs requests to one service in one region."""

    def __init__(self, name: str, credentials: Credentials, service: str, region: str) -> None:
        """Raises ModelError, which names the model, where botocore is not installed."""
        need_botocore(name, "access keys of AWS need")
        from botocore.auth import SigV4Auth
        from botocore.credentials import Credentials as Keys

        keys = Keys(credentials.access, credentials.secret, credentials.token)
        self._auth: Any = SigV4Auth(keys, service, region)

    def __call__(self, method: str, address: str, content: bytes) -> Mapping[str, str]:
        """``Authorization``, ``X-Amz-Date``, and the token of a temporary key."""
        from botocore.awsrequest import AWSRequest

        request = AWSRequest(method, address, data=content)
        self._auth.add_auth(request)
        return {name: value for name, value in request.headers.items() if value is not None}
