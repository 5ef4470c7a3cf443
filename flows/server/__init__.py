"""The Prefect server that runs talk to: the one PREFECT_API_URL names, else one of the project's own.

``use_server`` decides and starts it, ``serving`` is a block that talks to it, ``link`` is an address that a
person can click. The own server listens on loopback, asks for a credential that only its user can read, and
answers no page but its own; nothing here imports Prefect before its settings are made.
"""

from flows.server.connection import (
    Server,
    ServerError,
    ask,
    link,
    own_flow,
    quiet_in_notebook,
    send,
    serving,
    shell_exports,
    start,
    status,
    stop,
    use_server,
)

__all__ = [
    "Server",
    "ServerError",
    "ask",
    "link",
    "own_flow",
    "quiet_in_notebook",
    "send",
    "serving",
    "shell_exports",
    "start",
    "status",
    "stop",
    "use_server",
]
