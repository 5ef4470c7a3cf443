"""With facets of one's own, a row over all of them stands beside those of the groups."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.compare.__main__ import main as compare
from flows.suite.plan import SuiteOptions, check_suite, load_suite
from metrics.errors import ConfigError

Evaluate = Callable[..., Any]
GATE = "pairs: {'exact_match,none': {margin: 0.5, coverage: 0.5}}\n"


@pytest.fixture
def subjects(tmp_path: Path) -> Path:
    """Six items of two subjects, of which two are of the first, each answered twice by two models."""
    rows = [
        {
            "id": str(n), "question": f"{n}?", "answer": "yes", "subject": "few" if n < 2 else "many",
            "good": ["yes", "yes" if n else "no"], "bad": ["no", "yes" if n < 2 else "no"],
        }
        for n in range(6)
    ]  # fmt: skip
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "name": "subjects",
        "dataset": "items.jsonl",
        "prompt_template": "{{question}}",
        "target": "{{answer}}",
        "sample_params": {"num_samples": 2},
        "metric_list": ["exact_match"],
        "models": [{"name": name, "type": "replay", "config": {"field": name}} for name in ("good", "bad")],
        "facets": ["model_name", "item.subject", "sample_index"],
    }
    (tmp_path / "subjects.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


def test_a_row_over_all_facets_counts_an_item_once(
    begin: Evaluate, subjects: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = begin("subjects", subjects / "subjects.yaml", "--json")
    rows = ran.document["results"]
    overall = {row["model_name"]: row for row in rows if row["facets"] == {}}
    assert {name: row["value"] for name, row in overall.items()} == pytest.approx(
        {"good": 11 / 12, "bad": 2 / 12}
    )
    assert {(row["n_items"], row["n_samples"]) for row in overall.values()} == {(6, 12)}
    assert {row["prompt_template"] for row in rows} == {None}, "there is one, and no facet names it"
    groups = [row for row in rows if row["facets"]]
    assert len(groups) == 2 * 2 * 2
    assert rows[0]["facets"] == {}, "it stands before its groups"

    document = json.loads((subjects / "out" / "results.json").read_text())["results"]
    assert document["subjects/good"]["exact_match,none"] == pytest.approx(11 / 12)
    assert len(document) == 2 + len(groups)

    # The groups are what is compared and gated, as before.
    (subjects / "gate.yaml").write_text(GATE)
    with pytest.raises(SystemExit):
        compare(
            [str(subjects / "out"), str(subjects / "out"), "--gate", str(subjects / "gate.yaml"), "--json"]
        )
    pairs = json.loads(capsys.readouterr().out)["pairs"]
    assert len(pairs) == len(groups)
    assert all(pair["facets"] for pair in pairs)


def compared(capsys: pytest.CaptureFixture[str], base: Path, candidate: Path, gate: str) -> tuple[int, Any]:
    """The exit code of a comparison with its document, or with what stderr says."""
    (base.parent / "gate.yaml").write_text(gate)
    with pytest.raises(SystemExit) as ended:
        compare([str(base), str(candidate), "--gate", str(base.parent / "gate.yaml"), "--json"])
    shown = capsys.readouterr()
    return int(ended.value.code or 0), json.loads(shown.out) if shown.out else shown.err


OVERALL = "pairs: {'exact_match,none': {facets: overall, margin: 0.5, coverage: 0.5}}\n"


def test_a_gate_that_names_it_holds_all_items_together(
    evaluate: Evaluate, subjects: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = "facets=[model_name,item.subject]"
    ran = evaluate(subjects / "subjects.yaml", "--set", groups, "--json")
    overall = {row["model_name"]: row["value"] for row in ran.document["results"] if row["facets"] == {}}
    code, document = compared(capsys, subjects / "out", subjects / "out", OVERALL)
    pairs = {pair["facets"]["model_name"]: pair for pair in document["pairs"]}
    assert len(document["pairs"]) == len(pairs) == 2
    assert all(set(pair["facets"]) == {"model_name"} for pair in pairs.values())
    assert {name: pair["base"] for name, pair in pairs.items()} == pytest.approx(overall)
    assert [pair["n_items"] for pair in pairs.values()] == [6, 6]
    assert (code, document["verdict"]) == (0, "pass")

    before = subjects / "before"
    (subjects / "out").rename(before)
    rows = [json.loads(line) for line in (subjects / "items.jsonl").read_text().splitlines()]
    swapped = (json.dumps(row | {"good": row["bad"]}) + "\n" for row in rows)
    (subjects / "items.jsonl").write_text("".join(swapped))
    assert evaluate(subjects / "subjects.yaml", "--set", groups).code == 0
    code, document = compared(
        capsys, before, subjects / "out", OVERALL.replace("0.5, c", "0.01, method: unpaired, c")
    )
    worst = {pair["facets"]["model_name"]: pair for pair in document["pairs"]}["good"]
    assert worst["difference"] == pytest.approx(2 / 12 - 11 / 12)
    assert (code, worst["verdict"]) == (1, "regression")


def test_a_gate_over_facets_that_hold_an_items_samples_apart_is_refused(
    begin: Evaluate, subjects: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin("subjects", subjects / "subjects.yaml", "--json")
    code, said = compared(capsys, subjects / "out", subjects / "out", OVERALL)
    assert code == 2
    assert "exact_match,none: a facet holds samples of one item apart" in said


@pytest.mark.parametrize("named", ["exact_match,none", "pass@2(exact_match),none"])
def test_a_night_with_such_a_gate_is_refused_before_anything_is_asked(subjects: Path, named: str) -> None:
    gate = {"pairs": {named: {"facets": "overall", "margin": 0.5}}}

    def check(*facets: str, samples: int = 2) -> None:
        own = {"facets": ["model_name", *facets], "sample_params.num_samples": samples}
        one = {"config": "subjects.yaml", "set": own}
        (subjects / "suite.yaml").write_text(yaml.safe_dump({"name": "n", "benchmarks": [one], "gate": gate}))
        check_suite(load_suite(subjects / "suite.yaml"), SuiteOptions(store=str(subjects / "store")))

    check("item.subject")
    check("sample_index", samples=1)
    for facet in ("sample_index", "score", "finish_reason", "metadata.response_id"):
        with pytest.raises(ConfigError, match=rf"{re.escape(named)}.* the facet '{facet}' of 'subjects"):
            check("item.subject", facet)


def test_without_facets_of_ones_own_there_is_no_other_row(evaluate: Evaluate, subjects: Path) -> None:
    ran = evaluate(subjects / "subjects.yaml", "--set", "facets=[model_name]", "--json")
    assert [row["facets"] for row in ran.document["results"]] == [
        {"model_name": "good"}, {"model_name": "bad"},
    ]  # fmt: skip


def test_the_table_has_the_row_over_all_groups(evaluate: Evaluate, subjects: Path) -> None:
    ran = evaluate(subjects / "subjects.yaml", "--set", "facets=[model_name,item.subject]")
    assert ran.code == 0, ran.err
    lines = [line.split() for line in ran.out.splitlines() if line.startswith(("good", "bad"))]
    assert [line[1] for line in lines] == ["all", "all", "few", "many", "few", "many"]
    page = (subjects / "out" / "report.html").read_text()
    assert "<td><bdi>all</bdi></td>" in page
