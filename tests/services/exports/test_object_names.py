"""Names of derived objects: exact where they can be, and one name for one source."""

from __future__ import annotations

import hashlib
import re

from hypothesis import given
from hypothesis import strategies as st

from mcproxy.services.exports.object_keys import MAX_LABEL, MAX_NAME, label_value, service_name, slice_name

CLUSTERS = ("a", "a-b", "a-b-c", "b", "west")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
slices = st.from_regex(r"[a-c]([-.a-c]{0,8}[a-c])?", fullmatch=True).filter(lambda name: SUBDOMAIN.match(name))


def test_names_are_exact() -> None:
    assert slice_name("imported", "west", "serve-abc", CLUSTERS) == "imported-west-serve-abc"
    assert service_name("derived", "demo", "serve") == "derived-serve"
    assert label_value("west.example.com") == "west.example.com"


def test_a_service_whose_name_is_too_long_ends_in_a_hash_that_anybody_can_compute() -> None:
    longest = "s" * 55
    assert service_name("derived", "demo", longest) == f"derived-{longest}"
    # printf demo/s...s | sha256sum, the first 50 bits in base32hex
    long = "s" * 56
    digest = int(hashlib.sha256(f"demo/{long}".encode()).hexdigest()[:13], 16) >> 2
    expected = "".join("0123456789abcdefghijklmnopqrstuv"[digest >> 5 * place & 31] for place in range(9, -1, -1))
    assert service_name("derived", "demo", long) == f"derived-{'s' * 44}-{expected}"
    assert service_name("derived", "other", long) != service_name("derived", "demo", long)


def test_a_name_that_could_be_another_clusters_has_a_hash() -> None:
    assert slice_name("imported", "a-b", "x", CLUSTERS) == "imported-a-b-x"
    assert re.fullmatch(r"imported-a-b-x-h[0-9a-f]{32}", slice_name("imported", "a", "b-x", CLUSTERS))
    assert slice_name("imported", "a", "b-x", ("a", "west")) == "imported-a-b-x"


def test_a_name_that_looks_like_one_with_a_hash_gets_one() -> None:
    hashed = slice_name("imported", "a", "b-x", CLUSTERS)
    forged = slice_name("imported", "a-b", hashed.removeprefix("imported-a-b-"), CLUSTERS)
    assert forged != hashed
    assert len(forged) > len(hashed)


def test_long_names_are_shortened() -> None:
    name = slice_name("imported", "west", "x" * 253, CLUSTERS)
    assert len(name) == MAX_NAME
    assert name != slice_name("imported", "west", "x" * 252 + "y", CLUSTERS)
    long = label_value("c" * 200)
    assert len(long) == MAX_LABEL
    assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", label_value(("c" * 28 + ".") * 8 + "c"))


@given(st.lists(st.tuples(st.sampled_from(CLUSTERS), slices), min_size=2, unique=True))
def test_different_slices_have_different_valid_names(sources: list[tuple[str, str]]) -> None:
    names = [slice_name("imported", cluster, name, CLUSTERS) for cluster, name in sources]
    assert len(set(names)) == len(names)
    assert all(len(name) <= MAX_NAME and SUBDOMAIN.match(name) for name in names)


@given(st.text("ab-", min_size=40, max_size=63).map(lambda name: f"a{name[1:-1]}a"), st.integers(40, 63))
def test_names_of_services_are_labels_of_dns(name: str, length: int) -> None:
    name = name[: length - 1].rstrip("-") + "a"
    derived = service_name("derived", "demo", name)
    assert len(derived) <= MAX_LABEL
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", derived)
