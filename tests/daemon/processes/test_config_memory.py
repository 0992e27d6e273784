"""A configuration in memory that several processes read."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import pickle
from typing import Any

import pytest

from mcproxy.daemon.processes import config_memory
from tests.daemon.processes.scripted import config


def test_each_descriptor_has_all_of_it() -> None:
    whole = config(3, level="debug")
    written = config_memory.write(whole)
    duplicate = os.dup(written)
    assert config_memory.read(written) == whole
    assert config_memory.read(duplicate) == whole
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
            config_memory.write(config())
    written = config_memory.write(config())
    with monkeypatch.context() as patch:
        patch.setattr(mmap, "mmap", fail)
        with pytest.raises(OSError, match="Cannot allocate"):
            config_memory.read(written)
    written = config_memory.write(config())
    os.ftruncate(written, 10)
    with pytest.raises((EOFError, pickle.UnpicklingError, ValueError)):
        config_memory.read(written)
    assert set(os.listdir("/proc/self/fd")) <= before
