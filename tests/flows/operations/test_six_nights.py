"""Six nights by the shipped deployment, over HTTP: what of them can be believed.

A server of the test's own answers 600 items, night by night. Nights 1 to 3 are one model; of night 4
exactly 30 of the 600 answers that were right are wrong; night 5 is the old model again; the answers of
night 6 are those of night 5, but a filter is broken. The gate has the margin .02, and each night its whole
alpha (``alpha_over`` is off).

Greedy, nothing is left to chance: equal nights pass because they are equal, and the interval of 30 losses
of 600 lies beyond the margin. At temperature .7, 16 samples an item, 500 items are right with probability
.98 and 100 with .6, and the 30 of night 4 are among the former. Over all seeds of the server, as
``test_the_probabilities_of_the_sampled_design`` simulates with the comparison itself:

====================================================  =======
a night passes against one like it                      .975
it is worse (a loss within the margin, by chance)       .025
nights 2 and 3 both pass                                .95
night 4 is a regression                               > .99
====================================================  =======
"""

import http.server
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metrics.aggregation import build_aggregation
from metrics.config import StatisticsConfig
from metrics.statistics.comparison import compare_items
from metrics.statistics.differences import ItemColumn
from metrics.statistics.gate import decide
from tests.loopback import answering

ITEMS, SAMPLES, MARGIN = 600, 16, 0.02
TURNED = range(100, 130)
"""The items that night 4 turns wrong."""
LIKELY = [0.6 if item < 100 else 0.98 for item in range(ITEMS)]
"""With which probability a sample is right, at temperature .7."""
WHOLE, BROKEN = r"#### (\d+)", r"#### (\d*[1-9])"
"""The filter, and one that loses the last zero of 60 answers."""


@dataclass
class Model:
    """A model behind HTTP that tests change between nights."""

    wrong: set[int] = field(default_factory=set)
    seed: int = 0
    received: int = 0
    base_url: str = ""

    def answers(self, body: dict[str, Any]) -> list[str]:
        """The choices for a request: greedy ones are right unless ``wrong`` says otherwise."""
        self.received += 1
        item = int(body["messages"][-1]["content"].partition("+")[0])
        right = [
            item not in self.wrong
            and (not body["temperature"] or random.Random(f"{self.seed} {item} {n}").random() < LIKELY[item])
            for n in range(body.get("n") or 1)
        ]
        return [f"That is\n#### {item + 1 if good else item + 3}" for good in right]


@pytest.fixture
def model() -> Iterator[Model]:
    served = Model()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._reply({"object": "list", "data": [{"id": "m", "object": "model"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            choices = [
                {"index": n, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
                for n, text in enumerate(served.answers(body))
            ]
            self._reply({"id": "x", "model": "m", "choices": choices})

        def _reply(self, body: dict[str, Any]) -> None:
            content = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Silent."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    served.base_url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    with answering(server):
        yield served


@dataclass
class Nights:
    """Runs nights of one suite through the deployment, one after the other."""

    prefect: Any
    folder: Path
    model: Model
    sampling: dict[str, Any]
    ended: list[dict[str, Any]] = field(default_factory=list)

    def run(self, pattern: str = WHOLE, answers: Any = "fresh") -> dict[str, Any]:
        """A night: what it left in ``suite.json``, and its flow run as ``flow_run``."""
        output = self.folder / f"night-{len(self.ended) + 1}"
        parameters = {"suite": str(self._write(pattern, answers)), "options": {"output": str(output)}}
        self.ended.append(self.prefect.finished(self.prefect.trigger("suite/nightly", parameters)))
        return {**json.loads((output / "suite.json").read_text()), "flow_run": self.ended[-1]}

    def responses(self, night: int) -> list[str]:
        """What the model answered in a night, in the order of the items."""
        (file,) = (self.folder / f"night-{night}").glob("*/responses.jsonl")
        return [json.loads(line)["response"] for line in file.read_text().splitlines()]

    def _write(self, pattern: str, answers: Any) -> Path:
        rows = ({"id": str(n), "question": f"{n}+1=?", "answer": str(n + 1)} for n in range(ITEMS))
        (self.folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        number = [{"function": "regex", "regex_pattern": pattern}, {"function": "take_first"}]
        if "num_samples" in self.sampling:
            number[1:] = []
        benchmark = {
            "name": "sums", "output_type": "generate_until", "dataset": "items.jsonl", "target": "{{answer}}",
            "prompt_template": "{{question}}", "sample_params": {"max_tokens": 32, **self.sampling},
            "models": [{"name": "m", "config": {"base_url": self.model.base_url, "max_concurrency": 8}}],
            "filter_list": [{"name": "number", "filter": number, "metric_list": ["exact_match"]}],
        }  # fmt: skip
        (self.folder / "sums.yaml").write_text(json.dumps(benchmark))
        suite = {"name": "six", "benchmarks": ["sums.yaml"], "gate": {"margin": MARGIN}, "answers": answers}
        path = self.folder / "suite.yaml"
        path.write_text(json.dumps(suite))
        return path


def asked(night: dict[str, Any]) -> tuple[int, int]:
    (entry,) = night["evaluations"]
    return entry["requests"]["sent"], entry["requests"]["cached"]


@pytest.mark.nights
def test_six_greedy_nights_and_one_that_reuses(
    prefect: Any,
    model: Model,
    told: list[dict[str, Any]],
    webhook: str,
    until: Callable[..., Any],
    tmp_path: Path,
) -> None:
    prefect.deploy()
    prefect.automations(webhook)
    nights = Nights(prefect, tmp_path, model, {"temperature": 0})
    with prefect.worker():
        first, second, third = (nights.run() for _ in range(3))
        model.wrong = set(TURNED)
        fourth = nights.run()
        model.wrong = set()
        fifth = nights.run()
        sixth = nights.run(pattern=BROKEN)
        assert model.received == 6 * ITEMS
        model.wrong = set(range(ITEMS))
        seventh = nights.run(answers="reuse")
        until(lambda: len(told) >= 3, "the webhook is told of the nights that did not pass")
    six = [first, second, third, fourth, fifth, sixth]
    assert [night["verdict"] for night in six] == [None, "pass", "pass", "regression", "pass", "regression"]
    assert [asked(night) for night in six] == [(ITEMS, 0)] * 6
    held_against = [night["baseline"] for night in six]
    passed = [[night["run_id"]] for night in (first, second, third, fifth)]
    assert held_against == [[], passed[0], passed[1], passed[2], passed[2], passed[3]]
    (pair,) = fourth["comparison"]["pairs"]
    assert pair["difference"] == pytest.approx(-len(TURNED) / ITEMS)
    assert pair["ci_high"] < -MARGIN
    assert [run["state_name"] for run in nights.ended[:6]] == [
        "Completed", "Completed", "Completed", "Failed", "Completed", "Failed",
    ]  # fmt: skip

    # The filter broke, not the model: the answers are those of the night that passed.
    assert nights.responses(6) == nights.responses(5)
    (pair,) = sixth["comparison"]["pairs"]
    assert (pair["wins"], pair["losses"]) == (0, ITEMS // 10)

    # A model that answers everything wrong: nothing but the canaries was asked.
    assert (asked(seventh), model.received) == ((0, ITEMS), 6 * ITEMS + 5)
    assert (seventh["verdict"], nights.ended[6]["state_name"]) == ("inconclusive", "Inconclusive")
    assert "5 of 5 canaries were answered otherwise than before" in nights.ended[6]["state"]["message"]

    assert [message["verdict"] for message in told] == ["regression", "regression", "inconclusive"]
    for message, run in zip(told, [nights.ended[3], nights.ended[5], nights.ended[6]], strict=True):
        assert run["id"] in message["url"]
        assert message["pairs"][0]["pair"].startswith("exact_match,number")
        assert message["text"].endswith(run["state"]["message"])


@pytest.mark.nights
def test_four_sampled_nights(
    prefect: Any,
    model: Model,
    told: list[dict[str, Any]],
    webhook: str,
    until: Callable[..., Any],
    tmp_path: Path,
) -> None:
    prefect.deploy()
    prefect.automations(webhook)
    nights = Nights(
        prefect, tmp_path, model, {"temperature": 0.7, "num_samples": SAMPLES, "n": SAMPLES}
    )  # fmt: skip
    found = []
    with prefect.worker():
        for number in (1, 2, 3, 4):
            model.seed, model.wrong = number, set(TURNED) if number == 4 else set()
            found.append(nights.run())
        until(lambda: told, "the webhook is told of the regression")
    assert [night["verdict"] for night in found] == [None, "pass", "pass", "regression"]
    assert [asked(night) for night in found] == [(ITEMS * SAMPLES, 0)] * 4
    assert len({tuple(nights.responses(number)) for number in (1, 2, 3, 4)}) == 4  # no two nights are equal
    assert [message["verdict"] for message in told] == ["regression"]
    assert nights.ended[3]["id"] in told[0]["url"]


@pytest.mark.slow
def test_the_probabilities_of_the_sampled_design() -> None:
    draws = 400
    chances = np.array(LIKELY)
    turned = chances.copy()
    turned[list(TURNED)] = 0.0
    rng = np.random.default_rng(20261122)
    mean, options = build_aggregation("mean"), StatisticsConfig()

    def verdicts(of: np.ndarray) -> Counter[str]:
        found = Counter[str]()
        for _ in range(draws):
            runs = [rng.binomial(SAMPLES, chance) / SAMPLES for chance in (chances, of)]
            base, candidate = (ItemColumn(values, values[:, None]) for values in runs)
            found[decide(compare_items(mean, base, candidate, None, options), MARGIN, 0.05).verdict] += 1
        return found

    equal, worse = verdicts(chances), verdicts(turned)
    error = float(np.sqrt(0.975 * 0.025 / draws))
    assert abs(equal["pass"] / draws - 0.975) < 3 * error
    assert equal["pass"] + equal["worse"] == draws
    assert worse["regression"] == draws
