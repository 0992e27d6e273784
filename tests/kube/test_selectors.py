"""Label and field selectors: matches, and error messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.kube.selectors import FieldTerm, label_matcher, parse_field_selector, parse_label_selector
from mcproxy.kube.status import StatusError

WEB = {"app": "web", "tier": "front", "weight": "10", "empty": "", "odd": "1_0"}


def by_label(text: str, labels: dict[str, str]) -> bool:
    matcher = label_matcher(parse_label_selector(text))
    return matcher is None or matcher(labels)


@pytest.mark.parametrize(
    ("text", "matched"),
    [
        ("", True),
        ("app=web", True),
        ("app==web", True),
        (" app = web , tier=front ", True),
        ("app=api", False),
        ("app!=api", True),
        ("missing!=api", True),
        ("app", True),
        ("missing", False),
        ("!missing", True),
        ("!app", False),
        ("app in (api,web)", True),
        ("app in (api)", False),
        ("app notin (api)", True),
        ("missing notin (api)", True),
        ("empty=", True),
        ("weight>9", True),
        ("weight>10", False),
        ("weight<11", True),
        ("app<11", False),
        ("missing<11", False),
        ("app=web,tier=back", False),
        ("empty in ()", True),
        ("empty in (a,)", True),
        ("empty in (,a)", True),
        ("empty in (a,,b)", True),
        ("missing in ()", False),
        ("app notin ()", True),
        ("in", False),
        ("x.io/y!=z", True),
        ("odd>0", False),
    ],
)
def test_label_selectors(text: str, matched: bool) -> None:
    assert by_label(text, WEB) is matched


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("app web", "found 'web', expected: in, notin, =, ==, !=, gt, lt"),
        ("app in web", "found 'web' expected: '('"),
        ("!", "found '', expected: identifier"),
        ("app=-x", 'values[0][app]: Invalid value: "-x"'),
        (f"app={'x' * 64}", "values[0][app]: Invalid value"),
        ("a in (b c)", "found 'c', expected: ',' or ')'"),
        ("a in (b,(", "found '(', expected: ',', or identifier"),
        ("a in (", "found '', expected: ',', ')' or identifier"),
        ("a=(", "found '(', expected: identifier"),
        ("a/b/c", '<nil>: Invalid value: "a/b/c": a qualified name must consist of'),
        ("/b", "prefix part must be non-empty"),
        ("a/", "name part must be non-empty"),
        ("A_/b", "prefix part a lowercase RFC 1123 subdomain must consist of"),
        ('a"b', '<nil>: Invalid value: "a\\"b": name part must consist of'),
        ("k" * 64, "name part must be no more than 63 bytes"),
        (f"{'p' * 254}/a", "prefix part must be no more than 253 bytes"),
        ("weight>9223372036854775808000", "the value must be an integer"),
        ("weight>many", "for 'Gt', 'Lt' operators, the value must be an integer"),
    ],
)
def test_bad_label_selectors_are_400(text: str, message: str) -> None:
    with pytest.raises(StatusError) as caught:
        parse_label_selector(text)
    assert caught.value.code == 400
    assert caught.value.message.startswith("unable to parse requirement: ")
    assert message in caught.value.message


NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,8}[a-z0-9])?", fullmatch=True).filter(lambda x: x not in ("in", "notin"))


@given(st.dictionaries(NAMES, NAMES, max_size=4), NAMES, st.lists(NAMES, min_size=1, max_size=3))
def test_in_and_notin_are_opposites(labels: dict[str, str], key: str, values: list[str]) -> None:
    inside = by_label(f"{key} in ({','.join(values)})", labels)
    assert inside is (labels.get(key) in values)
    assert by_label(f"{key} notin ({','.join(values)})", labels) is not inside
    assert by_label(",".join(f"{name}={value}" for name, value in labels.items()), labels)


@given(st.text(alphabet="ab1 =!,()<>-.", max_size=14))
def test_any_text_is_a_selector_or_a_400(text: str) -> None:
    code = 200
    try:
        by_label(text, {"a": "1", "b": "a"})
    except StatusError as error:
        code = error.code
    assert code in (200, 400)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("app=web,", "found '', expected: identifier after ','"),
        ("=web", "found '=', expected: !, identifier, or 'end of string'"),
        ("app=web tier", "found 'tier', expected: ',' or 'end of string'"),
    ],
)
def test_errors_between_requirements(text: str, message: str) -> None:
    with pytest.raises(StatusError) as caught:
        parse_label_selector(text)
    assert (caught.value.code, caught.value.message) == (400, message)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", ()),
        (",", ()),
        ("a=b", (FieldTerm("a", False, "b"),)),
        ("b==c,a!=d,", (FieldTerm("a", True, "d"), FieldTerm("b", False, "c"))),
        ("a=x\\,y\\=z\\\\", (FieldTerm("a", False, "x,y=z\\"),)),
        ("a=\\,,b=1", (FieldTerm("a", False, ","), FieldTerm("b", False, "1"))),
        ("a!b=1", (FieldTerm("a!b", False, "1"),)),
    ],
)
def test_field_selectors(text: str, terms: tuple[FieldTerm, ...]) -> None:
    assert parse_field_selector(text) == terms


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metadata.name", "invalid selector: 'metadata.name'; can't understand 'metadata.name'"),
        ("a=b==c,,", "invalid field selector: unescaped character in value: 61"),
        ("a=a\\b", "invalid field selector: invalid escape sequence: \\b"),
        ("a=\\", "invalid field selector: invalid escape sequence: \\"),
    ],
)
def test_bad_field_selectors_are_400(text: str, message: str) -> None:
    with pytest.raises(StatusError) as caught:
        parse_field_selector(text)
    assert (caught.value.code, caught.value.message) == (400, message)


@given(st.lists(st.text(alphabet="ab\\,=! ", max_size=6), min_size=1, max_size=4))
def test_escaped_values_are_found_again(values: list[str]) -> None:
    terms = [
        f"f{index}=" + value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")
        for index, value in enumerate(values)
    ]
    found = parse_field_selector(",".join(terms))
    assert found == tuple(FieldTerm(f"f{index}", False, value) for index, value in enumerate(values))


@given(st.text(alphabet="ab\\,=!", max_size=14))
def test_any_text_is_a_field_selector_or_a_400(text: str) -> None:
    terms: tuple[FieldTerm, ...] = ()
    code = 200
    try:
        terms = parse_field_selector(text)
    except StatusError as error:
        code = error.code
    assert code in (200, 400)
    assert all("=" not in term.field for term in terms)
