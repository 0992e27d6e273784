"""Ten thousand hostile inputs for all parsers, the same ones each time; `make fuzz RUNS=1000000` for a night."""

from __future__ import annotations

import time

import pytest

from tests.fuzz.engine import CORPUS, fuzz, overload, shares
from tests.fuzz.mutation import MOST, Mutator
from tests.fuzz.targets import TARGETS, Target

RUNS = 10_000


@pytest.mark.parametrize(("target", "runs"), [pytest.param(*share, id=share[0].name) for share in shares(RUNS)])
def test_a_parser_takes_whatever_comes(target: Target, runs: int) -> None:
    crashes = fuzz(target, runs, "make test")
    assert not crashes, "\n".join(map(str, crashes))


@pytest.mark.parametrize("target", [target for target in TARGETS if target.hostile], ids=lambda target: target.name)
def test_depth_and_repetition_take_linear_time(target: Target) -> None:
    crashes = overload(target, 24)  # `make fuzz` gives it all of them
    assert not crashes, "\n".join(map(str, crashes))


def test_what_takes_too_long_is_found() -> None:
    def run(data: bytes) -> None:
        until = time.thread_time() + 2e-6 * len(data)
        while time.thread_time() < until:
            pass

    target = Target("sni", lambda: run, hostile=lambda: iter([b"a" * 100_000]))
    (crash,) = overload(target)
    assert "100000 bytes took" in crash.cause


def test_each_target_has_a_corpus_and_each_corpus_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == {target.name for target in TARGETS}


def test_a_target_that_raises_is_found_and_its_input_made_small() -> None:
    def run(data: bytes) -> None:
        assert b"<" not in data, "it has no place here"

    target = Target("sni", lambda: run, (b"<",))
    (crash,) = fuzz(target, 2000, 1)
    assert crash.data == b"<"
    assert "it has no place here" in crash.cause


def test_the_same_seed_makes_the_same_inputs() -> None:
    made = [[Mutator([b"GET / HTTP/1.1"], [b"\r\n"], seed).next() for _ in range(5)] for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]
    mutator = Mutator([b"abc" * 1000], [b"x"], 3)
    made[0] = [mutator.next() for _ in range(300)]
    assert len(set(made[0])) > 250
    assert all(len(one) <= MOST for one in made[0])
