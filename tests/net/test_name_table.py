"""Exact names before wildcards, and a wildcard stands for one label."""

from __future__ import annotations

from mcproxy.net.name_table import NameTable


def test_names() -> None:
    table = NameTable([("a.b", 1), ("*.b", 2), ("*.a.b", 3), ("a.b", 4), ("*.b", 5)])
    found = {name: table.find(name) for name in ("a.b", "x.b", "x.a.b", "b", "x.y.b", "", ".b")}
    assert found == {"a.b": 1, "x.b": 2, "x.a.b": 3, "b": None, "x.y.b": None, "": None, ".b": 2}
