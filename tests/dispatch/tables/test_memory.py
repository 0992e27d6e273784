"""Making and mapping shared memory: what fails leaves nothing behind, and the next attempt works."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import secrets
from collections.abc import Callable
from typing import Any

import pytest

from mcproxy.config.model import Per
from mcproxy.dispatch.limit_tables import LimitTables
from mcproxy.dispatch.tables import layout
from mcproxy.dispatch.tables.limit_shares import LimitId
from mcproxy.dispatch.tables.memory import Memory, MemoryMismatch
from mcproxy.dispatch.tables.mutexes import Mutexes
from mcproxy.dispatch.tables.shared_memory import SharedMemory


def descriptors() -> set[str]:
    gc.collect()  # a mapping has a descriptor of its own, and is part of a cycle
    return set(os.listdir("/proc/self/fd"))


def failing(number: int, after: int = 0) -> Callable[..., Any]:
    """Return what fails with an error of the system, but not the first times."""
    left = [after]

    def fail(*_: object, **__: object) -> int:
        if left[0]:
            left[0] -= 1
            return os.open(os.devnull, os.O_RDONLY)
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize(
    ("owner", "name", "fail"),
    [
        (os, "memfd_create", failing(errno.ENFILE)),
        (os, "ftruncate", failing(errno.ENOMEM)),
        (mmap, "mmap", failing(errno.ENOMEM)),
        (secrets, "randbits", failing(errno.ENOMEM)),
        (Mutexes, "initialize", failing(errno.ENOTSUP)),
        (os, "eventfd", failing(errno.ENFILE)),
        (os, "eventfd", failing(errno.ENFILE, after=layout.COLUMNS - 1)),
    ],
)
def test_memory_that_cannot_be_made_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fail: Callable[..., Any]
) -> None:
    before = descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        with pytest.raises(OSError, match=r"Too many open|Cannot allocate|not supported"):
            SharedMemory.create()
    assert descriptors() == before
    made = SharedMemory.create()
    try:
        tables = LimitTables(made.memory, column=0, wake=made.wake)
        assert tables.counts(LimitId("interactive", "short", Per.USER), 1).take("alice")
    finally:
        made.close()
    del made, tables
    assert descriptors() == before


def test_memory_that_cannot_be_mapped_is_the_callers_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that cannot map it ends; the descriptor is inherited, and others use the same memory."""
    made = SharedMemory.create()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(mmap, "mmap", failing(errno.ENOMEM))
            with pytest.raises(OSError, match="Cannot allocate"):
                Memory.attach(made.fd, 1)
        assert made.memory.words[layout.H_PIDS + 1] == 0, "it is no process of ours: nobody may kill it"
        assert os.fstat(made.fd).st_size == layout.WORDS * layout.WORD
        Memory.attach(made.fd, 1)
        assert made.memory.words[layout.H_PIDS + 1] == os.getpid()
    finally:
        made.close()


@pytest.mark.parametrize("change", [-1, 1])
def test_memory_of_another_size_is_not_mapped(change: int) -> None:
    made = SharedMemory.create()
    try:
        os.ftruncate(made.fd, layout.WORDS * layout.WORD + change)
        with pytest.raises(MemoryMismatch, match="not their memory"):
            Memory.attach(made.fd, 1)
    finally:
        made.close()
