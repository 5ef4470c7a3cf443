"""What the tests of processes that can be killed call there."""

import os
import re
import signal
import time
from collections.abc import Callable
from typing import Any

from metrics.errors import ConfigError


def matching(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern)
    return lambda text: compiled.search(text) is not None


def chosen(what: str) -> Callable[[Any], Any]:
    def call(item: Any) -> Any:
        match what, item:
            case "memory", "big":
                return len(bytearray(6 << 30))
            case "sleep", "long":
                time.sleep(60)
            case "fork", "long":
                if os.fork():
                    time.sleep(60)
                time.sleep(300)
            case "die", "now":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "raise", "bad":
                raise ConfigError("item 'bad' is bad")
            case "print", _:
                print("noise", flush=True)
                os.write(1, b"more noise")
            case "unpicklable", _:
                return lambda: None
        return item

    return call


def failing() -> None:
    raise ConfigError("can't be made")
