"""Key sets of files: what is found good when the file is checked can be used when tokens come."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcproxy.config.files import jwks
from mcproxy.config.model import Mark
from mcproxy.config.problem import Problems
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Document, Mapping, Place, Scalar
from mcproxy.identity.authentication.oidc.key_source import parse_keys
from tests.config.pki import NOW

GOOD: dict[str, Any] = json.loads((Path(__file__).parents[1] / "cases" / "jwks/good.json").read_text())
ODD: list[Any] = [
    None,
    "",
    "AQAB",
    "sig",
    "enc",
    "verify",
    ["verify"],
    ["sign"],
    "RS256",
    "HS256",
    "P-384",
    "EC",
    1,
    {},
]


def faults(path: Path) -> Problems:
    problems = Problems()
    mark = Mark("mcproxy.yaml", 1, 1)
    document = Document("mcproxy.yaml", "/", Mapping({}, mark))
    place = Place(document, ("jwksFile",), Scalar(str(path), mark, str(path)), mark)
    jwks.read(Context(problems=problems, environ={}, now=NOW), place)
    return problems


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.sampled_from(["kty", "use", "key_ops", "alg", "kid", "crv", "n", "e", "x", "y"]),
            st.sampled_from(ODD),
        ),
        max_size=4,
    ),
    st.integers(0, 4),
)  # fmt: skip
@example([(0, "e", "verify")], 1)  # base64 with bits left over
def test_a_set_without_faults_has_keys_for_who_verifies(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, str, Any]], kept: int
) -> None:
    document = copy.deepcopy(GOOD)
    for number, name, value in changes:
        document["keys"][number][name] = value
    del document["keys"][kept:]
    path = tmp_path_factory.mktemp("jwks") / "jwks.json"
    path.write_text(json.dumps(document))
    if not faults(path).errors:
        assert len(parse_keys(path.read_bytes())) >= 1


@pytest.mark.parametrize(
    "text",
    [
        b'{"keys": [], "keys": []}',
        b'{"keys": NaN}',
        b'{"keys": ["\\ud800"]}',
        b'\xef\xbb\xbf{"keys": []}',
        '{"keys": ["é"]}'.encode("latin-1"),
        b"[" * 100_000,
        b"",
    ],
)
def test_what_readers_could_understand_differently_is_no_key_set(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(text)
    [problem] = faults(path).errors
    assert problem.what.startswith(f"{path} is not JSON ")
    with pytest.raises(ValueError, match=r"\Ais not acceptable JSON\Z"):
        parse_keys(text)


def test_a_set_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": GOOD["keys"][:1] * 101}))
    [problem] = faults(path).errors
    assert problem.what == f"{path} has 101 keys, and the first 100 count"
