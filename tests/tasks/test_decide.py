"""The picture of a decision on a run's page: what the run knows of it, in signs."""

import numpy as np
import pytest
from markdown_it import MarkdownIt

from metrics.statistics.sequence import PairedUnits, SequenceLevels, look_at
from tasks.comparison.matching import GroupKey
from tasks.decide import WIDE, PairLook, _line, picture


def looked(name: str = "exact_match", asked: int = 300, **facets: str) -> PairLook:
    """A look at a pair of which no item differs, every hundred items."""
    levels = SequenceLevels.of_gate(0.05, 1)
    looks = [
        look_at(PairedUnits(np.zeros(n), np.ones(n), 1.0, 1000), 0.05, levels)
        for n in range(100, asked + 1, 100)
    ]
    key = GroupKey("sums", "none", name, "mean", facets=tuple(facets.items()))
    course = tuple((look.units, look.ci_low, look.ci_high) for look in looks)
    return PairLook(key, 0.05, looks[-1], course)


def said_in(heading: str) -> str:
    """A heading as a reader sees it, if it is nothing but text."""
    opened, inline, _ = MarkdownIt("commonmark", {"html": True}).parse(heading)
    assert opened.type == "heading_open"
    assert [child.type for child in inline.children or ()] == ["text"]
    return str((inline.children or [])[0].content)


def test_a_picture_says_pair_verdict_interval_and_margin_and_draws_a_line_a_look() -> None:
    look = looked(model_name="m")
    heading, _, fence, head, *lines, end = picture([look]).splitlines()
    low, high = look.row()["ci_low"], look.row()["ci_high"]
    assert heading.startswith("### ")
    assert said_in(heading) == f"exact_match,none m: pass, {low:+.4f} … {high:+.4f}, margin 0.05"
    assert (fence, end) == ("```", "```")
    first, last = look.course[0][1], look.course[0][2]  # it never widens
    assert head.split() == ["asked", f"{first:+.2f}", f"{last:+.2f}"]
    assert [line.split()[0] for line in lines] == ["100", "200", "300"]
    drawn = [line[11:] for line in lines]
    widths = [line.index("┤") - line.index("├") for line in drawn]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == WIDE - 1
    assert widths[-1] < widths[0]
    places = {(line.index("!"), line.index(":")) for line in drawn}
    assert len(places) == 1  # margin and no difference stand still
    (margin, none) = places.pop()
    assert margin < none
    # Once it passed, the interval begins right of the margin.
    assert drawn[0].index("├") < margin < drawn[-1].index("├")


def test_what_is_not_decided_or_never_will_be_is_said_so() -> None:
    undecided = picture([looked(asked=100)])
    assert ": not decided, " in undecided
    never = picture([PairLook(GroupKey("sums", "none", "bleu", "mean"), 0.1, "has no bounds")])
    assert never.splitlines() == ["### bleu,none: has no bounds"]


@pytest.mark.parametrize(
    "name",
    [
        "![x](http://a/b.png)", "<img src=x onerror=alert(1)>", "a\n# b", "```", "**a** _b_ ~c~", "[a](b)",
        "`a` \\", "&lt;",
    ],
)  # fmt: skip
def test_a_name_is_text_and_no_markdown(name: str) -> None:
    """Names are the users' own: of metrics, filters, and values of facets from a dataset."""
    page = picture([looked(name, subject=name)])
    assert page.count("\n```") == 2
    heading = page.partition("\n")[0]
    shown = name.replace("\n", " ")
    assert said_in(heading).startswith(f"{shown},none {shown}: pass, ")


def test_a_line_has_its_ends_and_marks_where_they_are() -> None:
    whole = _line((-1.0, 1.0), (-0.5, 0.0), (-1.0, 1.0))
    assert (whole.index("├"), whole.index("!"), whole.index(":"), whole.index("┤")) == (0, 15, 30, 60)
    part = _line((-0.25, 0.5), (-0.5, 0.0), (-1.0, 1.0))
    assert (part.index("!"), part.index(":"), part.index("┤"), len(part)) == (15, 30, 45, 46)
    assert part.index("├") in (22, 23)
    # A mark beyond the range stands at its end, and hides no end of the interval.
    beyond = _line((-0.25, 0.25), (-2.0, 0.0), (-0.25, 0.25))
    assert (beyond[0], beyond[-1], beyond.count("!")) == ("├", "┤", 0)
    assert _line((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)).strip() in ("┤", "├")
