"""Mathematical answers: what is equal is found, what is near is not, and math-verify and the harness
agree."""

import json
from pathlib import Path
from typing import Any

import pytest

from metrics.build import build_metric
from metrics.config import MetricConfig
from metrics.errors import ConfigError
from metrics.text.math_match import hendrycks, last_boxed, math_match, minerva

ORACLE = json.loads(Path(__file__).with_name("math_normalisation_oracle.json").read_text())


def same(gold: str, own: str | None, **arguments: Any) -> bool:
    return bool(math_match([[gold]], [own], **arguments).score[0])


@pytest.mark.parametrize(
    ("gold", "own"),
    [
        (r"\frac{1}{2}", "0.5"), (r"50\%", "0.5"), ("0.5", r"50\%"), (r"\frac12", r"50\%"),
        ("(2,4)", "( 2 , 4 )"),
        (r"\{1,2,3\}", r"\{3,2,1\}"), ("[0,1)", r"[ 0 , 1 )"), ("10,000", "10000"), ("5", r"5\text{ cm}"),
        (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{bmatrix} 1&2\\3&4 \end{bmatrix}"),
        ("x^2+2x+1", "(x+1)^2"), (r"\sqrt{8}", r"2\sqrt{2}"), ("5", "x = 5"), ("1/2", r"\dfrac{1}{2}"),
        ("Evelyn", r"so it was \boxed{\text{Evelyn}}."), ("4", r"We get \boxed{4}, and 7 is wrong."),
        ("12", "First 7, then 9. So the answer is 12."), ("-3", r"Final Answer: The final answer is $-3$."),
    ],
)  # fmt: skip
def test_what_is_equal_is_found(gold: str, own: str) -> None:
    assert same(gold, own)


@pytest.mark.parametrize(
    ("gold", "own"),
    [
        ("(2,4)", "4"), ("(2,4)", "(4,2)"), ("[0,1)", "(0,1)"), ("[0,1)", "1"), ("0.28", "28"), ("1/2", "12"),
        ("x", "y"), ("2", "AZYUK2A"), ("5", ""), ("5", None), (r"\{1,2\}", r"\{1,2,3\}"), ("Evelyn", "Debra"),
        (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"), ("5", "((((("),
    ],
)  # fmt: skip
def test_what_is_not_equal_is_wrong(gold: str, own: str | None) -> None:
    assert not same(gold, own)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("9:30", "9:45"), ("3:4", "3:5"), ("5 or 6", "6"), ("-3, 2", "2"), ("2024-05-01", "2024-06-01"),
        ("9:30 am", "9:45 am"), ("5 ft 6 in", "6"), ("x + 5", "5"), ("2x", "2"), ("2 pi", "2"), ("x, 5", "5"),
        ("x or 5", "5"), ("ln 2", "2"), ("it is 9:30", "30"),
    ],
)  # fmt: skip
def test_a_text_with_more_than_a_number_is_more_than_that_number(one: str, other: str) -> None:
    assert not same(one, other)
    assert not same(other, one)
    assert not same(one, rf"\boxed{{{other}}}")
    assert not same(rf"\boxed{{{one}}}", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1/2", "0.5"), ("1,234", "1234"), ("1 234", "1234"), ("10 km", "10"), ("5%", "0.05"), ("€5", "5"),
        ("12,5", "12.5"), ("5 USD", "5"), ("8 m/s", "8"), ("**5**", "5"), ("\u22125", "-5"), ("5.", "5"),
        ("9:30", "9:30"), ("1 or 2", "2 or 1"), ("x=5", "5"), ("so we get 5 km", "5"), ("n is 5", "5"),
    ],
)  # fmt: skip
def test_a_number_and_its_dress_are_that_number(one: str, other: str) -> None:
    assert same(one, other)
    assert same(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("25", "5²"), ("10000", "10⁴"), ("0.1", "10⁻¹"), ("300000000", "3×10⁸"), (r"3 \times 10^8", "3·10⁸"),
        ("2.5", "2½"), ("-2.5", "-2½"), ("2.5", "2 ½"), ("0.125", "⅛"), ("7/8", "7⁄8"), ("x^2", "x²"),
        (r"x^{10}+1", "x¹⁰ + 1"), ("x^n", "xⁿ"), (r"x \geq 5", "x ≥ 5"), (r"(x+1)^2", "(x+1)²"),
        ("5:1", "5 : 1"), ("3:4", "6:8"), ("1/2", "1:2"), ("5–6", "5–6"), ("5..7", "5..7"), ("5⁄2", "5/2"),
        ("≥ 5", r"\geq 5"), ("> 5", "> 5"), ("5~6", "5~6"),
    ],
)  # fmt: skip
def test_characters_that_write_mathematics_are_read(one: str, other: str) -> None:
    for own in (other, f"${other}$", rf"\boxed{{{other}}}"):
        assert same(one, own)
        assert same(own, one)


@pytest.mark.parametrize(
    ("gold", "own"),
    [
        ("300000000", "The speed is 3×10⁸ m/s."), ("2.5", "It takes 2½ hours. The answer is 2½."),
        ("10000", "about 10⁴"), ("25", "The answer is 5²."), ("10000", "roughly 10⁴ metres"),
        ("2.5", "The answer is 2½."), ("5", "5 cm²"), ("5", "5m²"), ("8", "8 m/s²"),
        ("5", "The area is 5 cm²."),
    ],
)  # fmt: skip
def test_characters_that_write_mathematics_are_read_in_prose(gold: str, own: str) -> None:
    assert same(gold, own)


@pytest.mark.parametrize(
    ("number", "more"),
    [
        ("5", "5²"), ("10", "10⁴"), ("10", "10⁻¹"), ("3", "3×10⁸"), ("2", "2½"), ("5", "5:1"), ("5", "10:2"),
        ("5", "5⁄2"), ("5", "≥ 5"), ("5", "≤ 5"), ("5", "5..7"), ("5", "5–6"), ("5", "5~6"), ("5", "5³"),
        ("5", r"\geq 5"), ("5", "> 5"),
        ("5–7", "5–6"),
    ],
)  # fmt: skip
def test_a_number_is_not_what_more_than_it_is_written(number: str, more: str) -> None:
    for own in (more, f"${more}$", rf"\boxed{{{more}}}"):
        assert not same(number, own)
        assert not same(own, number)


MONEY = [
    r"\$32,348", r"\$5", r"\$18.90", r"\$1{,}000", r"\$.05", r"-\$5", r"32\$", r"(\$1, \$2)",
    r"\$3.50\text{ per pound}",
]  # fmt: skip


@pytest.mark.parametrize("normalise", [None, "minerva", "hendrycks"])
@pytest.mark.parametrize("gold", MONEY)
def test_money_equals_itself_wherever_it_stands(gold: str, normalise: str | None) -> None:
    answers = {
        "auto": [gold, f"${gold}$", rf"\boxed{{{gold}}}"],
        "boxed": [rf"\boxed{{{gold}}}"],
        "whole": [gold],
    }
    for answer, own in answers.items():
        wrong = [one for one in own if not same(gold, one, answer=answer, normalise=normalise)]
        assert not wrong, answer
    assert not same(
        gold, rf"\boxed{{{gold.replace('5', '6').replace('3', '4').replace('1', '7')}}}", normalise=normalise
    )


@pytest.mark.parametrize("gold", MONEY)
def test_money_equals_the_same_number_without_a_sign(gold: str) -> None:
    assert same(gold, gold.replace(r"\$", ""))
    assert same(gold.replace(r"\$", ""), gold)


def test_where_the_answer_stands_is_a_choice() -> None:
    assert same("5", "it is 5")
    assert not same("5", "it is 5", answer="boxed")
    assert same("5", r"not 4: \boxed{5}", answer="boxed")
    assert same("5", "$5$", answer="whole")
    assert last_boxed(r"\boxed{1} and \boxed{\frac{a}{b}} or \boxed{c") is None
    assert last_boxed(r"\fbox{x} $\boxed y$") == "y"
    assert last_boxed(r"$\boxed \$5$") == r"\$5"


def test_units_precision_and_strictness_are_choices() -> None:
    assert same("0.333333", r"\frac{1}{3}", precision=4)
    assert not same("0.33", r"\frac{1}{3}")
    assert same("x+1", "y+1", strict=False)
    assert not same("x+1", "y+1")
    assert same("5", r"$5 \text{ cm}$")
    assert not same("$5$", r"$5 \text{ cm}$", drop_units=False)
    assert not same("5", "5 cm", drop_units=False)


@pytest.mark.parametrize("arguments", [{"answer": "lst"}, {"normalise": "minerwa"}])
def test_unknown_choices_are_refused(arguments: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="math_match: "):
        math_match([["1"]], ["1"], **arguments)


PAIRS = [
    ("$9$", r"Answer \[ 9 \]"), ("$9$", "Answer $ \n 9 \n $"), ("$10$", r"Answer \( (9+1) \)"),
    ("$1/3$", r"$\frac13 $"),
    (r"$\sqrt{3}$", r"$\sqrt3 $"), ("$1/3$", r"$\frac{1}{3} \text{meters}$"), ("$1/3$", r"$k = \frac{1}{3}$"),
    (r"$28\%$", "$28$ percent"), ("$0.28$", "28"), ("$28$", "28/100"), ("$[0,9)$", "$[0,1)$"),
    ("$1$", "$-[0,1)$"),
    ("1000.99", "so the number is 10 which is 1,000.99m²"), ("1,22", "1.22"), ("2", "AZYUK2A"),
    ("-10/9", r"-\frac{10}{9}"),
    ("$90^\\circ$", r"it is $\boxed{90^\circ}$"),
    ("$(3, \\frac{\\pi}{2})$", r"\boxed{\left( 3, \frac{\pi}{2} \right)}"),
    (r"$\{1,2\} \cup \{3\}$", r"$\{1,2,3\}$"), ("$x > 2$", r"$(2, \infty)$"),
    (r"$2-2p$", r"Thus $x-p=\boxed{2-2p}$."),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "own"), PAIRS)
def test_verdicts_are_those_of_math_verify(gold: str, own: str) -> None:
    """On pairs of the kinds that its own tests hold."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    targets = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    read = [parse(text, targets, parsing_timeout=None) for text in (gold, own)]
    assert same(gold, own) == verify(*read, timeout_seconds=None)


@pytest.mark.parametrize("normalise", [hendrycks, minerva], ids=["hendrycks", "minerva"])
def test_normalisations_are_those_of_the_harness(normalise: Any) -> None:
    """Recorded from lm-evaluation-harness 0.4.13, strip_string and normalize_final_answer; null: it
    raised."""
    for text, expected in ORACLE[normalise.__name__]:
        try:
            found = normalise(text)
        except ValueError:
            found = None
        assert found == expected, text


def test_minerva_compares_texts_and_then_formulas() -> None:
    solution = r"so that $x = \boxed{\frac{1}{2}}$."
    announced = "Final Answer: The final answer is ${}$. I hope it is correct."
    assert same(solution, announced.format("0.5"), normalise="minerva")
    assert (
        not same(solution, announced.format("0.5"), normalise="hendrycks")
        or hendrycks("0.5") == r"\frac{1}{2}"
    )
    assert same(r"\boxed{1,000}", announced.format("1000 dollars"), normalise="minerva")
    assert not same(r"\boxed{1,000}", announced.format("100"), normalise="minerva")


def test_versions_are_in_the_signature_and_a_missing_library_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = MetricConfig(metric="math_match")
    signature = build_metric(config, lambda _: None).signature()
    assert "math-verify:0" in signature
    assert "sympy:1" in signature
    monkeypatch.setattr("metrics.build.installed_version", lambda name: "not installed")
    with pytest.raises(ConfigError, match=r"pip install 'nightjar\[math\]'"):
        build_metric(config, lambda _: None)


def test_a_config_can_say_where_the_answer_stands() -> None:
    built = build_metric(MetricConfig(metric="math_match", kwargs={"answer": "boxed"}), lambda name: name)
    assert built.evaluate([["5"], ["5"]], ["5", r"\boxed{5}"]).score.tolist() == [0.0, 1.0]
