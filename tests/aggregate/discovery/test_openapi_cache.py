"""Documents are kept compressed, up to a number of bytes, and made once for all who ask."""

from __future__ import annotations

import random
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from mcproxy.aggregate.discovery.openapi_documents import CompressedDocument, DocumentCache, compress
from mcproxy.net.failures import failure
from tests.support.clock import DATE


def document(body: bytes) -> CompressedDocument:
    return CompressedDocument(compress(body), len(body), b'"1"', DATE)


def noise(size: int) -> bytes:
    """Bytes that cannot be compressed."""
    return random.Random(size).randbytes(size)


class Maker:
    """Makes a document when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Deferred[CompressedDocument]] = []

    async def __call__(self) -> CompressedDocument:
        deferred: Deferred[CompressedDocument] = Deferred()
        self.waiting.append(deferred)
        return await deferred


def ask(cache: DocumentCache, key: str, make: Any, *, keep: bool = True) -> tuple[Deferred[Any], list[Any]]:
    found: list[Any] = []
    deferred = Deferred.fromCoroutine(cache.get_or_make(key, make, keep=keep))
    deferred.addBoth(found.append)
    return deferred, found


async def put(cache: DocumentCache, key: str, body: bytes) -> None:
    async def make() -> CompressedDocument:
        return document(body)

    await cache.get_or_make(key, make)


def test_a_document_is_what_it_was() -> None:
    assert document(b"abc" * 1000).body() == b"abc" * 1000
    assert len(document(b"abc" * 1000).zipped) < 100


async def test_the_least_recently_used_goes_first() -> None:
    cache = DocumentCache(3500)
    for key in "abc":
        await put(cache, key, noise(1000))
    assert cache.get("a") is not None
    await put(cache, "d", noise(1000))
    assert [key for key in "abcd" if cache.get(key)] == ["a", "c", "d"]
    assert 3000 < cache.size <= 3500


async def test_one_that_is_too_big_is_not_kept() -> None:
    cache = DocumentCache(500)
    await put(cache, "a", noise(1000))
    assert cache.get("a") is None
    assert cache.size == 0


def test_it_is_made_once_for_all_who_ask() -> None:
    cache, make = DocumentCache(10_000), Maker()
    first, gone = ask(cache, "a", make)
    _, second = ask(cache, "a", make)
    assert len(make.waiting) == 1
    first.cancel()
    assert isinstance(gone[0], Failure)
    assert isinstance(gone[0].value, CancelledError)
    assert not second
    made = document(b"x")
    make.waiting[0].callback(made)
    assert second == [made]
    assert cache.get("a") is made


def test_a_failure_is_everybodys_and_not_kept() -> None:
    cache, make = DocumentCache(10_000), Maker()
    results = [ask(cache, "a", make)[1] for _ in range(2)]
    make.waiting[0].errback(failure(ValueError("broken")))
    assert all(result[0].check(ValueError) for result in results)
    _, third = ask(cache, "a", make)
    assert len(make.waiting) == 2
    make.waiting[1].callback(document(b"x"))
    assert third[0].body() == b"x"


def test_what_is_not_to_be_kept_is_made_again() -> None:
    cache, make = DocumentCache(10_000), Maker()
    for count in (1, 2):
        _, found = ask(cache, "a", make, keep=False)
        assert len(make.waiting) == count
        make.waiting[-1].callback(document(b"x"))
        assert found[0].body() == b"x"
    assert cache.size == 0


@pytest.mark.parametrize("keys", [["a", "b"], ["a", "a"]])
async def test_the_size_is_right_over_replacements(keys: list[str]) -> None:
    cache = DocumentCache(10_000)
    for key in keys:
        await put(cache, key, noise(500))
    assert cache.size == sum(len(found.zipped) for key in set(keys) if (found := cache.get(key)))
