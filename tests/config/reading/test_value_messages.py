"""Errors of the validator become messages at the right places; what a file gets in full is in cases/."""

import pytest

from mcproxy.config.model import Mark
from mcproxy.config.problem import Problems
from mcproxy.config.reading.nodes import Document, Entry, Mapping, Path, Scalar
from mcproxy.config.reading.schema_check import check_schema
from mcproxy.config.reading.yaml_text import read_yaml


def errors(text: str, *broken: Path) -> list[str]:
    problems = Problems()
    root = read_yaml("f", text.encode(), problems)
    assert isinstance(root, Mapping)
    check_schema(Document("f", "/", root, set(broken)), problems)
    return [str(problem) for problem in problems.errors]


@pytest.mark.parametrize("number", [".inf", "-.inf", ".nan"])
@pytest.mark.parametrize("key", ["listeners", "daemon", "version", "logging"])
def test_numbers_that_json_has_not_are_refused_wherever_they_stand(key: str, number: str) -> None:
    text = f"version: 1\n{key}: {number}\n" if key != "version" else f"version: {number}"
    assert f"{key}: is the number {number}; write a finite number" in errors(text)[0]
    assert len(errors(text)) == 1


def test_a_value_gets_one_message_however_many_keywords_it_fails() -> None:
    name = "A" * 300
    found = errors(f"version: 1\nclusters: [{{name: {name}, kubeconfig: {{file: a}}}}]")
    assert len(found) == 1
    assert "has the wrong form" in found[0]


def test_a_value_of_the_wrong_type_gets_no_message_about_its_keys() -> None:
    assert errors("version: 1\nclusters: [5]") == ["f:2:12: clusters[0]: is the number 5; write a mapping"]


def test_what_was_reported_before_is_passed_over_with_all_that_is_below() -> None:
    text = "version: 1\ndaemon: {workers: 0, zzz: 1}\nclusters: [{name: 5}]"
    assert len(errors(text)) == 4
    assert errors(text, ("daemon",), ("clusters", 0)) == []
    assert [line.partition("; ")[0] for line in errors(text, ("daemon", "zzz"), ("clusters",))] == [
        "f:2:19: daemon.workers: 0 is too small"
    ]


def test_whole_numbers_may_be_written_as_floats() -> None:
    assert errors("version: 1\nlisteners: [{name: a, bind: 'a:1', limits: {headers: 1e2, connections: 2.0}}]") == []


def test_half_a_surrogate_pair_from_the_environment_is_no_crash() -> None:
    mark = Mark("f", 1, 1)
    value = Scalar("\udce9", mark, "${NAME}")
    root = Mapping({"version": Entry(mark, value)}, mark)
    problems = Problems()
    check_schema(Document("f", "/", root), problems)
    assert [problem.what for problem in problems.errors] == ['is the string "${NAME}"']
