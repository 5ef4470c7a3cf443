"""The harness's Jinja2: strict about undefined names, trailing newlines kept, and the filter
``regex_replace``.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jinja2
from jinja2.sandbox import SandboxedEnvironment

from metrics.errors import ConfigError
from tasks.datasets.config import DatasetError


def regex_replace(text: str, pattern: str, replacement: str, count: int = 0) -> str:
    """``re.sub`` as a filter: ``{{ text | regex_replace('\\\\s+', ' ') }}``."""
    return re.sub(pattern, replacement, text, count=count)


# As strict as for native templates: a benchmark's YAML is data, its functions lie in files of their own.
_environment = SandboxedEnvironment(
    undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False
)
_environment.filters["regex_replace"] = regex_replace


def render_template(text: str, doc: Mapping[str, Any]) -> str:
    """The template with the document's fields by name; raises DataError naming what is undefined."""
    try:
        return _compiled(text).render(**doc)
    except jinja2.UndefinedError as error:
        fields = ", ".join(map(str, doc))
        raise DatasetError(f"template {text!r:.120}: {error}; the document has {fields}") from error
    except jinja2.TemplateError as error:
        raise ConfigError(f"template {text!r:.120}: {error}") from error
    except Exception as error:  # what a filter or an operator says about a value it does not take
        raise DatasetError(f"template {text!r:.120}: {type(error).__name__}: {error}") from error


def check_template(text: str, where: str) -> None:
    """Raises ConfigError for a text that is no template; most column names and plain texts are one."""
    if "{" not in text:
        return
    try:
        _environment.parse(text)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(
            f"{where}: not a Jinja2 template: {error.message} (line {error.lineno} of it)"
        ) from error


@lru_cache(maxsize=4096)
def _compiled(text: str) -> jinja2.Template:
    return _environment.from_string(text)
