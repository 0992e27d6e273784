"""The Python functions behind mypyc's C functions, by file and line.

mypyc names the C function of `Class.method` in `package.module` CPyDef_package___module___Class___method, with as much
of the module's name as it needs among the compiled ones; CPyPy_… is the wrapper that interpreted code calls.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

_COMPILED = re.compile(r"(CPyDef|CPyPy)_(.+?)(\.(?:cold|part|isra|constprop|lto_priv)[.\d]*)*(?:'\d+)?")


class FunctionNames:
    """The functions of one tree; its sources are read when the first compiled one is shown."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree

    def show(self, name: str) -> str:
        """Return "http/h1/h1_server.py:228 H1ServerConnection.dataReceived" for a compiled function, else `name`."""
        found = _COMPILED.fullmatch(name)
        if found is None:
            return name
        where = self._places.get(found[2])
        if where is None:
            return name
        return f"{where} (wrapper)" if found[1] == "CPyPy" else where

    @cached_property
    def _places(self) -> dict[str, str]:
        """Where each function is, by all that mypyc may call it; of two with one name neither is told."""
        places: dict[str, str] = {}
        root = self._tree / "mcproxy"
        for file in sorted(root.rglob("*.py")):
            path = file.relative_to(root)
            module = ("mcproxy", *path.with_suffix("").parts)
            for qualified, line in _functions(ast.parse(file.read_text()).body, ()):
                shown = f"{path}:{line} {'.'.join(qualified)}"
                for length in range(len(module)):
                    key = "___".join((*module[length:], *qualified))
                    places[key] = shown if key not in places else ""
        return {key: shown for key, shown in places.items() if shown}


def _functions(body: list[ast.stmt], outer: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    for each in body:
        if isinstance(each, ast.ClassDef):
            yield from _functions(each.body, (*outer, each.name))
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (*outer, each.name), each.lineno
