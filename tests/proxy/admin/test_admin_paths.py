"""Which paths an Admin listener serves: byte for byte those of the list, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.config.model import ADMIN_PATHS
from mcproxy.proxy.admin.admin_paths import Requested, find

METRICS = frozenset({"/metrics", "/readyz"})


@pytest.mark.parametrize("path", ADMIN_PATHS)
def test_each_path_is_found(path: str) -> None:
    assert find(path.encode(), ADMIN_PATHS) == Requested(path)
    assert find(path.encode() + b"?a=b?c", ADMIN_PATHS) == Requested(path, "", b"a=b?c")
    assert find(path.encode(), set(ADMIN_PATHS) - {path}) is None


def test_a_check_is_below_its_probe() -> None:
    assert find(b"/readyz/cluster/east?verbose", METRICS) == Requested("/readyz", "cluster/east", b"verbose")
    assert find(b"/livez/ping", METRICS) is None


OTHER_SPELLINGS = (
    *(b"//metrics", b"/metrics/", b"//metrics/", b"/%6detrics", b"/metrics%2f", b"/metrics%3fa", b"/metrics;a=b"),
    *(b"/./metrics", b"/a/../metrics", b"/metrics/.", b"/METRICS", b"/metrics ", b"/metrics#a", b"metrics", b"*"),
    *(b"\\metrics", b"/metrics\\", b"/metrics\x00", b"/status", b"/", b"", b"/readyz/", b"/readyzz", b"/config"),
    *(b"/readyz/../config", b"http://localhost/metrics/x"),
)


@pytest.mark.parametrize("target", OTHER_SPELLINGS)
def test_no_other_spelling_is_served(target: bytes) -> None:
    found = find(target, METRICS)
    assert found is None or found == Requested("/readyz", "../config")  # the name of a check that does not exist


@given(st.binary(max_size=40) | st.text("/.;%2fmetricsonag?", max_size=30).map(str.encode))
def test_whatever_is_asked_for_only_what_is_listed_is_found(target: bytes) -> None:
    found = find(target, METRICS)
    if found is not None:
        assert found.path in METRICS
        assert target.startswith(found.path.encode())
        assert not found.check or found.path == "/readyz"
