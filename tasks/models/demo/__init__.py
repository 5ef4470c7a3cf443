"""The embedded model server: OpenAI's protocol over a solver of word problems and a byte-level language model."""

from tasks.models.demo.faults import Faults
from tasks.models.demo.server import VERSION, DemoOptions
from tasks.models.demo.serving import Serving, serve

__all__ = ["VERSION", "DemoOptions", "Faults", "Serving", "serve"]
