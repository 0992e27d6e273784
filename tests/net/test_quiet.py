"""One line of a kind in a period, and never more kinds than fit."""

from mcproxy.net.quiet import Quiet


def test_one_line_of_a_kind_in_a_period() -> None:
    quiet = Quiet(60.0)
    assert [quiet.may_say("a", now) for now in (0.0, 1.0, 59.9, 60.0, 61.0, 120.0)] == [
        True,
        False,
        False,
        True,
        False,
        True,
    ]
    assert quiet.may_say("b", 1.0)


def test_a_crowd_of_kinds_shares_one_place_until_others_are_old() -> None:
    quiet = Quiet(60.0, most=3)
    assert [quiet.may_say(kind, 0.0) for kind in "abcde"] == [True, True, True, True, False]
    assert not quiet.may_say("a", 1.0)
    assert quiet.may_say("f", 61.0)
    assert quiet.may_say("g", 61.0)
