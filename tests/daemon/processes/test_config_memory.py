"""A configuration in memory that several processes read."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import pickle
from typing import Any

import pytest

from mcproxy.daemon.processes import children
from tests.daemon.processes.scripted import config


def test_each_descriptor_has_all_of_it() -> None:
    whole = config(3, level="debug")
    written = children.config_to_memory(whole)
    duplicate = os.dup(written)
    assert children.config_from_memory(written) == whole
    assert children.config_from_memory(duplicate) == whole
    for closed in (written, duplicate):
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(closed)


def test_what_fails_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    gc.collect()
    before = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(pickle, "dump", fail)
        with pytest.raises(OSError, match="Cannot allocate"):
            children.config_to_memory(config())
    written = children.config_to_memory(config())
    with monkeypatch.context() as patch:
        patch.setattr(mmap, "mmap", fail)
        with pytest.raises(OSError, match="Cannot allocate"):
            children.config_from_memory(written)
    written = children.config_to_memory(config())
    os.ftruncate(written, 10)
    with pytest.raises((EOFError, pickle.UnpicklingError, ValueError)):
        children.config_from_memory(written)
    assert set(os.listdir("/proc/self/fd")) <= before
