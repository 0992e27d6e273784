"""Variables are compared by digests that say nothing of their values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.daemon.control.environment_digests import differing_variables, digests

ENVIRON = st.dictionaries(st.text("ABC", min_size=1, max_size=2), st.text("xyzé", max_size=3), max_size=5)


@given(ENVIRON, ENVIRON)
def test_what_differs_is_named(sent: dict[str, str], own: dict[str, str]) -> None:
    expected = tuple(sorted(name for name, value in sent.items() if own.get(name) != value))
    assert differing_variables(digests(sent), own) == expected


def test_the_same_value_is_never_sent_alike() -> None:
    assert digests({"A": "b"})["environ"] != digests({"A": "b"})["environ"]


@pytest.mark.parametrize(
    "request_",
    [{}, {"salt": 1, "environ": {}}, {"salt": "a"}, {"salt": "a", "environ": []}, {"salt": "a", "environ": {"A": 1}}],
)
def test_what_is_not_understood_is_left_out(request_: dict[str, Any]) -> None:
    assert differing_variables(request_, {"A": "b"}) == ()


def test_a_request_with_too_many_is_not_looked_at() -> None:
    assert differing_variables(digests({f"A{number}": "b" for number in range(300)}), {}) == ()
