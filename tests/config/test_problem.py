"""Problems as text."""

from __future__ import annotations

from mcproxy.config.model import Mark
from mcproxy.config.problem import SHOWN, ConfigErrors, Problem, lines_of


def problem(line: int, what: str = "is wrong", lint: str | None = None) -> Problem:
    return Problem(Mark("f.yaml", line, 3), f"clusters[{line}].name", what, "mend it", lint)


def test_many_equal_ones_are_folded() -> None:
    lines = lines_of([problem(line) for line in range(1, 109)])
    assert lines[0] == "f.yaml:1:3: clusters[1].name: is wrong; mend it"
    assert len(lines) == SHOWN + 1
    assert lines[-1].startswith("105 more of these: is wrong (f.yaml:4:3, f.yaml:5:3, ")
    assert lines[-1].endswith(", …)")


def test_one_more_than_are_shown_is_shown_too() -> None:
    assert len(lines_of([problem(line) for line in range(SHOWN + 1)])) == SHOWN + 1
    assert "more of these" not in "".join(lines_of([problem(line) for line in range(SHOWN + 1)]))


def test_only_what_says_the_same_is_folded_and_the_order_stays() -> None:
    found = [problem(line, f"is {line % 2}") for line in range(12)]
    lines = lines_of(found)
    assert [line.rpartition(": ")[2] for line in lines[:6]] == ["is 0; mend it", "is 1; mend it"] * 3
    assert lines[6:] == (
        "3 more of these: is 0 (f.yaml:6:3, f.yaml:8:3, f.yaml:10:3)",
        "3 more of these: is 1 (f.yaml:7:3, f.yaml:9:3, f.yaml:11:3)",
    )
    assert str(ConfigErrors(found)) == "\n".join(lines)


def test_a_problem_without_a_place_is_counted() -> None:
    assert lines_of([Problem(None, "", "is wrong")] * 9)[-1] == "6 more of these: is wrong"
