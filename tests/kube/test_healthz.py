"""The probes in the forms of a kube-apiserver: compared with recordings, and with what its source says of failures."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.kube.healthz import Check, ProbeQuery, answer, answer_one, parse_query

RECORDINGS = Path(__file__).parents[1] / "golden" / "probes"


def recorded(name: str) -> tuple[str, str]:
    """Return the query and the body of a recording."""
    recording = json.loads((RECORDINGS / f"{name}.json").read_text())
    return recording["request"]["path"].partition("?")[2], recording["response"]["body"]


def checks_in(body: str) -> list[Check]:
    names = [line.removeprefix("[+]") for line in body.splitlines() if line.startswith("[+]")]
    return [Check(name.removesuffix(" excluded: ok").removesuffix(" ok"), "") for name in names]


@pytest.mark.parametrize("name", ["livez-verbose", "readyz-verbose", "livez-exclude"])
def test_a_verbose_answer_is_byte_for_byte_that_of_a_kube_apiserver(name: str) -> None:
    query, body = recorded(name)
    assert answer(name.partition("-")[0], checks_in(body), parse_query(query.encode())) == (200, body)


@pytest.mark.parametrize("name", ["livez", "readyz", "healthz"])
def test_a_short_answer_is_too(name: str) -> None:
    assert answer(name, [Check("ping", "")]) == (200, recorded(name)[1])


def test_one_check_is_too() -> None:
    assert answer_one("ping", [Check("ping", "")]) == (200, recorded("readyz-one-check")[1])


FAILING = [Check("ping", ""), Check("cluster/east", "none of its 2 endpoints is ready"), Check("reload", "no", False)]


def test_a_failure_is_verbose_without_its_cause() -> None:
    text = (
        "[+]ping ok\n[-]cluster/east failed: reason withheld\n[-]reload not needed: reason withheld\n"
        "readyz check failed\n"
    )
    assert answer("readyz", FAILING) == (500, text)


def test_one_failing_check_has_its_cause() -> None:
    assert answer_one("cluster/east", FAILING) == (500, "internal server error: none of its 2 endpoints is ready\n")
    assert answer_one("reload", FAILING) == (500, "internal server error: no\n")
    assert answer_one("east", FAILING) is None


def test_what_is_not_needed_fails_nothing() -> None:
    assert answer("readyz", [FAILING[0], FAILING[2]]) == (200, "ok")


def test_an_excluded_check_fails_nothing() -> None:
    assert answer("readyz", FAILING, parse_query(b"exclude=cluster/east")) == (200, "ok")
    assert answer("readyz", FAILING, parse_query(b"exclude=cluster%2feast&verbose=1"))[1].splitlines()[1] == (
        "[+]cluster/east excluded: ok"
    )


def test_what_cannot_be_excluded_is_said() -> None:
    text = answer("readyz", FAILING[:1], parse_query(b"verbose&exclude=b&exclude=a"))[1]
    assert text == (
        '[+]ping ok\nwarn: some health checks cannot be excluded: no matches for "a","b"\nreadyz check passed\n'
    )


@given(st.lists(st.text(), max_size=30))
def test_no_excluded_name_forges_a_line(names: list[str]) -> None:
    text = answer("readyz", [Check("ping", "")], ProbeQuery(verbose=True, excluded=frozenset(names)))[1]
    lines = text.splitlines()
    assert lines[0] in ("[+]ping ok", "[+]ping excluded: ok")
    assert lines[-1] == "readyz check passed"
    assert len(lines) == (3 if set(names) - {"ping"} else 2)
    assert len(text) < 1500


def test_too_many_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="Max number of fields"):
        parse_query(b"&".join([b"exclude=a"] * 101))
