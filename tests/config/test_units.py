import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.config.units import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("0s", 0),
        ("500ms", 0.5),
        ("5s", 5),
        ("2m30s", 150),
        ("1h", 3600),
        ("1h1m1s1ms", 3661.001),
        ("90m", 5400),
    ],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "5", "5S", "1.5s", "-1s", "1s1m", "1m1m", " 1s", "1s\n", "1d", "٣s", "1234567890s"]
)
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@given(st.integers(0, 10**12))
def test_a_formatted_duration_is_read_as_itself(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("1000", 1000), ("64Ki", 65536), ("16Mi", 16 * 2**20), ("1Gi", 2**30), ("1Ti", 2**40)]
)
def test_a_size_is_read_in_bytes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "64K", "64KiB", "1.5Ki", "-1", "64ki", "1 Ki", "1Ki\n", "0x10"])
def test_anything_else_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


@given(st.integers(0, 2**49))
def test_a_formatted_size_is_read_as_itself(size: int) -> None:
    assert parse_size(format_size(size)) == size


def test_sizes_and_durations_are_written_short() -> None:
    assert [format_size(n) for n in (0, 1000, 65536, 2**20)] == ["0", "1000", "64Ki", "1Mi"]
    assert [format_duration(n) for n in (0, 0.5, 90, 300, 3600)] == ["0s", "500ms", "1m30s", "5m", "1h"]
