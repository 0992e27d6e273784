"""Causes: their codes go where they go."""

from __future__ import annotations

import copy
import pickle

import pytest

from mcproxy.net.causes import Cause, CauseCode, code_of, code_of_status, read_cause

CAUSE = Cause("it refused the connection", CauseCode.REFUSED)


def test_a_copy_has_the_code() -> None:
    for same in (copy.copy(CAUSE), copy.deepcopy({"cause": CAUSE})["cause"], pickle.loads(pickle.dumps(CAUSE))):
        assert (same, code_of(same)) == ("it refused the connection", CauseCode.REFUSED)


def test_a_plain_sentence_and_a_longer_one_have_none() -> None:
    assert code_of("it refused the connection") is CauseCode.OTHER
    assert code_of(f"a: {CAUSE}") is CauseCode.OTHER


def test_another_version_may_tell_a_code_that_is_not_known_here() -> None:
    assert code_of(read_cause("it is late", CauseCode.NO_ANSWER.value)) is CauseCode.NO_ANSWER
    assert code_of(read_cause("it is odd", "network/odd")) is CauseCode.OTHER


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (404, CauseCode.NOT_FOUND),
        (429, CauseCode.TOO_MANY_REQUESTS),
        (503, CauseCode.SERVER_ERROR),
        (302, CauseCode.OTHER_ANSWER),
    ],
)
def test_a_status_has_the_code_of_its_kind(status: int, code: CauseCode) -> None:
    assert code_of_status(status) is code
