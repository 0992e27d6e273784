"""Duplicates of descriptors: all, or none."""

from __future__ import annotations

import os

import pytest

from mcproxy.net.listening_sockets import duplicates


def test_each_is_a_descriptor_of_its_own() -> None:
    reader, writer = os.pipe()
    copies = duplicates([reader, writer])
    os.close(reader)
    os.close(writer)
    try:
        assert len(set(copies)) == 2
        os.write(copies[1], b"x")
        assert os.read(copies[0], 1) == b"x"
    finally:
        for copy in copies:
            os.close(copy)


def test_where_one_fails_none_is_left() -> None:
    reader, writer = os.pipe()
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Bad file descriptor"):
        duplicates([reader, writer, -1])
    assert set(os.listdir("/proc/self/fd")) == before
    os.close(reader)
    os.close(writer)
