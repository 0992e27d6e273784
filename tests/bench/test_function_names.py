"""The names of mypyc's C functions and the Python functions behind them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.function_names import FunctionNames

SOURCE = """
def parse(data):
    return data


class Server:
    def received(self, data):
        pass
"""


@pytest.fixture
def names(tmp_path: Path) -> FunctionNames:
    for module in ("http/h1/server.py", "kube/parser.py", "net/parser.py"):
        file = tmp_path / "mcproxy" / module
        file.parent.mkdir(parents=True)
        file.write_text(SOURCE)
    return FunctionNames(tmp_path)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("CPyDef_server___Server___received", "http/h1/server.py:7 Server.received"),
        ("CPyDef_h1___server___parse", "http/h1/server.py:2 parse"),
        ("CPyPy_mcproxy___http___h1___server___parse", "http/h1/server.py:2 parse (wrapper)"),
        ("CPyDef_server___parse.constprop.0", "http/h1/server.py:2 parse"),
        ("CPyDef_net___parser___parse", "net/parser.py:2 parse"),
        ("CPyDef_parser___parse", "CPyDef_parser___parse"),  # there are two
        ("CPyDef_other___parse", "CPyDef_other___parse"),
        ("PyObject_GetAttr", "PyObject_GetAttr"),
    ],
)
def test_a_compiled_function_is_shown_with_its_file_and_line(names: FunctionNames, name: str, shown: str) -> None:
    assert names.show(name) == shown
