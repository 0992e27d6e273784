"""Token files mean what they mean to kube-apiserver."""

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.config.files import token_file
from mcproxy.config.model import Mark, Secret, StaticToken
from mcproxy.config.problem import Problems
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Document, Mapping, Place, Scalar
from tests.config.pki import NOW
from tests.support.processor_time import processor_time

CASES = Path(__file__).parents[1] / "cases"


def read(path: Path, *, allow_system_names: bool = False) -> tuple[tuple[StaticToken, ...], Problems]:
    problems = Problems()
    mark = Mark("mcproxy.yaml", 1, 1)
    document = Document("mcproxy.yaml", "/", Mapping({}, mark))
    place = Place(document, ("tokenFile",), Scalar(str(path), mark, str(path)), mark)
    context = Context(problems=problems, environ={}, now=NOW)
    found = token_file.read(context, place, allow_system_names=allow_system_names)
    return found.tokens if found is not None else (), problems


def test_lines_are_tokens_with_users_and_groups() -> None:
    tokens, problems = read(CASES / "tokens/good.csv")
    # The file is in the repository, which everybody may read.
    assert [problem.lint for problem in (*problems.errors, *problems.warnings)] in ([], ["readable-secret"])
    assert tokens == (
        StaticToken(Secret("hush-1"), "alice", "1"),
        StaticToken(Secret("hush-2"), 'bob, the "builder"', "2", ("dev", "ops")),
        StaticToken(Secret("hush-3"), "carol", ""),
        StaticToken(Secret("hush-4"), "désirée", "4", ("dev",)),
    )


def test_of_two_lines_with_one_token_the_last_counts() -> None:
    tokens, _ = read(CASES / "tokens/odd.csv")
    assert [token.user for token in tokens if token.token.reveal() == "hush-1"] == ["dave"]


def test_system_names_are_warned_of_unless_they_are_allowed() -> None:
    warned = [str(problem) for problem in read(CASES / "tokens/odd.csv")[1].warnings]
    allowed = [str(problem) for problem in read(CASES / "tokens/odd.csv", allow_system_names=True)[1].warnings]
    assert len([text for text in warned if "system:" in text]) == 2
    assert len([text for text in allowed if "system:" in text]) == 0


def test_system_names_stay_in_the_model() -> None:
    first, _ = read(CASES / "tokens/odd.csv")
    second, _ = read(CASES / "tokens/odd.csv", allow_system_names=True)
    assert first == second  # what is not believed is refused when it calls, not here


@pytest.mark.parametrize("name", ["odd", "quotes", "unclosed", "latin1"])
def test_no_message_and_no_repr_shows_a_token(name: str) -> None:
    tokens, problems = read(CASES / f"tokens/{name}.csv")
    assert problems.errors
    assert "hush" not in "\n".join(str(problem) for problem in (*problems.errors, *problems.warnings))
    assert "hush" not in repr(tokens)


_name = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=6)
_group = _name.map(lambda name: name.replace(",", ";"))


@given(
    st.lists(st.tuples(_name, _name, st.lists(_group, max_size=3)), max_size=5),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.sampled_from(["\n", "\r\n"]),
)
def test_what_a_csv_writer_writes_is_read_as_it_was_meant(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[tuple[str, str, list[str]]],
    quoting: int,
    end: str,
) -> None:
    text = io.StringIO()
    writer = csv.writer(text, quoting=quoting, lineterminator=end)  # type: ignore[arg-type]
    for number, (user, uid, groups) in enumerate(lines):
        writer.writerow([f'tok"en,{number}', user, uid, ",".join(groups)])
    path = tmp_path_factory.mktemp("tokens") / "users.csv"
    path.write_bytes(text.getvalue().encode())
    tokens, problems = read(path, allow_system_names=True)
    assert problems.errors == ()
    expected = [(f'tok"en,{n}', user, uid, tuple(groups)) for n, (user, uid, groups) in enumerate(lines)]
    assert [(each.token.reveal(), each.user, each.uid, each.groups) for each in tokens] == expected


@given(st.text(st.sampled_from('ab,"\r\n \0é'), max_size=24))
def test_any_text_is_read_to_its_end(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("tokens") / "users.csv"
    path.write_bytes(text.encode())
    tokens, problems = read(path)
    lines = text.count("\n") + 1
    found = (*problems.errors, *problems.warnings)
    assert all(problem.mark is not None and 1 <= problem.mark.line <= lines for problem in found)
    assert tokens or found


@pytest.mark.slow
def test_100_000_tokens_are_read_within_seconds(tmp_path: Path) -> None:
    path = tmp_path / "users.csv"
    path.write_text("".join(f'token-{n},user-{n},{n},"dev,ops"\n' for n in range(100_000)))
    with processor_time() as taken:
        tokens, _ = read(path)
        assert len(tokens) == 100_000
    assert taken.seconds < 5


def test_a_quote_that_is_never_closed_does_not_take_long(tmp_path: Path) -> None:
    path = tmp_path / "users.csv"
    path.write_text('a,b,c,"' + '""' * 500_000)
    with processor_time() as taken:
        _, problems = read(path)
        assert len(problems.errors) == 1
    assert taken.seconds < 2
