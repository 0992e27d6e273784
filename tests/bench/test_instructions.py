"""Instructions of a request: which cases are counted, and that the counted service serves all its peers' requests."""

from __future__ import annotations

import json
import pickle
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from bench import instructions
from bench.builds import COMPILED, PURE
from bench.callgrind import Profile
from bench.instructions import CHAIN, CHAINS, SHAPES, Case, Count, Tree
from bench.lab import open_lab
from bench.processes import Failed
from bench.subjects import Command


def tree(place: Path, name: str = instructions.THIS, *, compiled: bool = False) -> Tree:
    module = place / "mcproxy" / "__init__.py"
    module.parent.mkdir(parents=True)
    module.touch()
    if compiled:
        (place / "mcproxy__mypyc.cpython-311-x86_64-linux-gnu.so").touch()
    return Tree(name, place)


def count(instructions_each: int) -> Count:
    return Count(10, 0, Profile(Counter(handle=10 * instructions_each), Counter(handle=10 * instructions_each)))


def test_words_choose_of_their_kind_and_the_other_kinds_are_whole(tmp_path: Path) -> None:
    trees = [tree(tmp_path / "a", compiled=True), tree(tmp_path / "b", "before")]
    assert len(instructions.choose(trees, None)) == len(SHAPES) * len(CHAINS) * 3
    chosen = instructions.choose(trees, "h1-16,h2-4x25,chain")
    assert {(case.shape.name, case.chain, case.subject) for case in chosen} == {
        (shape, CHAIN, subject) for shape in ("h1-16", "h2-4x25") for subject in (PURE, COMPILED, "before pure")
    }
    assert [case.subject for case in instructions.choose(trees, "h1-16,bare,compiled")] == [COMPILED]
    with pytest.raises(Failed, match="--only nginx: instructions knows h1-16, "):
        instructions.choose(trees, "h1-16,nginx")


def test_another_tree_must_be_a_checkout(tmp_path: Path) -> None:
    other = tree(tmp_path / "other", "before")
    assert instructions.trees([Command("before", str(other.place))])[1] == other
    with pytest.raises(Failed, match="not the directory of a checkout"):
        instructions.trees([Command("before", str(tmp_path))])


def test_the_table_has_a_column_for_each_build_and_its_ratio_to_the_first(tmp_path: Path) -> None:
    cases = instructions.choose([tree(tmp_path, compiled=True)], "h1-16,bare,chain")
    counts = dict(zip(cases, [count(100_000), count(50_000), count(200_000), count(120_000)], strict=True))
    table, *functions = instructions.summarise(counts)
    assert table.columns == ["shape", "through", PURE, COMPILED, "compiled / pure", "connections opened"]
    assert table.rows == [
        ["h1-16", "bare", "100.0", "50.0", "0.500", "0"],
        ["h1-16", CHAIN, "200.0", "120.0", "0.600", "0"],
    ]
    assert len(functions) == len(cases)


def test_functions_of_many_cases_are_those_of_the_first_shapes_whole_chain(tmp_path: Path) -> None:
    cases = instructions.choose([tree(tmp_path, compiled=True)], None)
    _, *functions = instructions.summarise({case: count(1) for case in cases})
    assert [section.title for section in functions] == [
        "Where they go: h1-16, chain, pure",
        "Where they go: h1-16, chain, compiled",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["h1-16", "h2-4x25", "mixed-4x25"])
def test_the_counted_service_answers_all_requests_of_its_clients(shape: str) -> None:
    with open_lab() as lab:
        case = instructions.choose(instructions.trees([]), f"{shape},observed,pure")[0]
        traffic = lab.directory / "traffic"
        traffic.write_bytes(pickle.dumps(instructions.make_traffic()))
        settings = instructions.write_settings(lab, case, traffic, "", 100)
        argv = [str(lab.python.program), "-P", "-m", "bench.counted_service", str(settings)]
        done = subprocess.run(
            argv, env=instructions.environ(settings.parent, case), capture_output=True, text=True, check=False, cwd="/"
        )
        assert (done.returncode, done.stderr) == (0, "")
        found = json.loads(done.stdout)
        assert found["requests"] >= 100
        assert found["opened"] == 0
        assert not found["compiled"]


def test_the_environment_has_mcproxy_of_the_tree_and_this_bench(tmp_path: Path) -> None:
    other = tree(tmp_path / "other", "before")
    (tmp_path / "run").mkdir()
    found = instructions.environ(tmp_path / "run", Case(SHAPES[0], CHAIN, other, PURE))
    packages, bench = found["PYTHONPATH"].split(":")
    assert (Path(packages) / "mcproxy").resolve() == other.place / "mcproxy"
    assert Path(bench) == instructions.ROOT
    assert (found["MCPROXY_PURE"], found["PYTHONHASHSEED"]) == ("1", "0")
    (tmp_path / "again").mkdir()
    assert "MCPROXY_PURE" not in instructions.environ(tmp_path / "again", Case(SHAPES[0], CHAIN, other, COMPILED))
