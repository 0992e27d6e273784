import pytest

from mcproxy.config.server_names import covers, is_server_name


@pytest.mark.parametrize(
    "name", ["a", "a.example.com", "*.example.com", "10.0.0.1", "fd00::1", "a_b.example.com", "1a.x1"]
)
def test_a_server_name(name: str) -> None:
    assert is_server_name(name)


@pytest.mark.parametrize(
    "name",
    ["", "*", "a.*.com", "*a.com", "A", "a..b", ".a", "a.", "-a", "a-", "a b", "a:1", "10.0.0.256", "a.1", "é", "a\n",
     "a" * 64, ".".join(["a" * 60] * 5)],
)  # fmt: skip
def test_no_server_name(name: str) -> None:
    assert not is_server_name(name)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("a.example.com", "a.example.com", True),
        ("*.example.com", "a.example.com", True),
        ("*.example.com", "*.example.com", True),
        ("*.example.com", "a.b.example.com", False),
        ("*.example.com", "example.com", False),
        ("*.example.com", "*.b.example.com", False),
        ("*.com", "*.example.com", False),
        ("a.example.com", "*.example.com", False),
        ("*.0.0.1", "10.0.0.1", False),
        ("10.0.0.1", "10.0.0.1", True),
    ],
)
def test_which_names_a_certificate_name_covers(pattern: str, name: str, expected: bool) -> None:
    assert covers(pattern, name) is expected
