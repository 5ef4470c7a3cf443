"""One name of each kind: a metric, a filter, a scorer, a provider of models and a server of weights."""

from metrics import metric
from scorers.filters import filter_step
from tasks.models.providers.openai import OpenAI
from tasks.models.registry import provider
from tasks.serving.config import Preset


@metric("loudness")
def loudness(references, predictions):
    """Share of a prediction's letters that are capitals."""
    letters = [one for one in predictions[0] if one.isalpha()]
    return sum(map(str.isupper, letters)) / len(letters) if letters else 0.0


@filter_step("shout", keeps="all")
def shout(resps, docs):
    """Every response in capitals."""
    return [[None if one is None else one.upper() for one in item] for item in resps]


class EvenLength:
    """Is a prediction's length even?"""

    def score(self, batch):
        """1 or 0 for each prediction; None, unscored, where there is none."""
        return [None if one is None else float(len(one) % 2 == 0) for one in batch.predictions]


@provider("parrot")
class Parrot(OpenAI):
    """An endpoint that speaks OpenAI's protocol and wants its key in a header of its own."""

    def headers(self, key):
        """The key, under the name that this endpoint knows."""
        return {} if key is None else {"x-parrot-key": key}


SHOUTING_SERVER = Preset(
    "shouting-server",
    "A server of weights that shouts.",
    ("{python}", "-m", "shouting_server", "--model", "{path}", "--name", "{name}", "--port", "{port}"),
    "/health",
)
