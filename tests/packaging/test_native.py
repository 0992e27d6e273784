"""What is compiled (packaging/native_modules.py), and what `make native` says where it cannot compile."""

from __future__ import annotations

import ast
import importlib.machinery
import os
import runpy
import subprocess
import sys
import traceback
from abc import ABCMeta
from collections.abc import Mapping
from pathlib import Path

import pytest

import mcproxy
from mcproxy.kube.requestinfo import parse
from mcproxy.kube.status import StatusError

ROOT = Path(__file__).parents[2]
HEAP_TYPE = 1 << 9  # of `__flags__` (Include/object.h): a class that is not the interpreter's own
listed = runpy.run_path(str(ROOT / "packaging" / "native_modules.py"))
FILES: list[str] = listed["compiled_files"]()
INTERPRETED: Mapping[str, str] = listed["INTERPRETED"]


def test_what_is_listed_exists_and_is_listed_once() -> None:
    assert FILES
    assert len(set(FILES)) == len(FILES)
    for name, reason in INTERPRETED.items():
        assert (ROOT / "mcproxy" / f"{name}.py").is_file(), name
        assert f"mcproxy/{name}.py" not in FILES
        assert reason


def test_what_chooses_the_build_is_interpreted() -> None:
    assert not {"mcproxy/compiled.py", "mcproxy/__main__.py"} & set(FILES)
    assert not [file for file in FILES if file.endswith("__init__.py")]


def test_the_modules_that_run_are_of_the_build_that_is_said() -> None:
    found = {file: importlib.import_module(file[:-3].replace("/", ".")) for file in FILES}
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0] if mcproxy.BUILD == "compiled" else ".py"
    assert not [file for file, module in found.items() if not str(module.__file__).endswith(suffix)]


@pytest.mark.parametrize("file", FILES)
def test_exceptions_set_their_attributes_in_their_constructors(file: str) -> None:
    """Compiled, an exception's class has the values of its body and its instances do not."""
    module = importlib.import_module(file[:-3].replace("/", "."))
    classes = {
        node.name: [
            each for each in node.body if isinstance(each, ast.Assign | ast.AnnAssign) and each.value is not None
        ]
        for node in ast.parse((ROOT / file).read_bytes()).body
        if isinstance(node, ast.ClassDef) and issubclass(getattr(module, node.name), BaseException)
    }
    assert {name: [ast.unparse(each) for each in values] for name, values in classes.items() if values} == {}


def classes() -> list[type]:
    modules = [importlib.import_module(file[:-3].replace("/", ".")) for file in FILES]
    return [
        each
        for module in modules
        for each in vars(module).values()
        if isinstance(each, type) and each.__module__ == module.__name__
    ]


def test_no_two_classes_share_their_cache_of_isinstance() -> None:
    """A compiled one that derives from `ABC` has none of its own: an instance of one would be that of others."""
    abstract = [each for each in classes() if isinstance(each, ABCMeta) and not vars(each).get("_is_protocol")]
    assert [each for each in abstract if "_abc_impl" not in vars(each)] == []


def test_a_compiled_class_derives_from_compiled_ones_or_those_of_the_interpreter() -> None:
    """Of any other base mypyc does not know the layout: its own fields lie over those of the base."""
    native = [each for each in classes() if hasattr(each, "__mypyc_attrs__")]
    bases = {base for each in native for base in each.__mro__ if base.__flags__ & HEAP_TYPE} - set(native)
    assert [base for base in bases if base.__basicsize__ > object.__basicsize__] == []


def test_a_compiled_class_takes_no_weak_references() -> None:
    """On Python 3.11 mypyc would let exceptions and generics take them, and clear none (packaging/native.py)."""
    assert [each for each in classes() if hasattr(each, "__mypyc_attrs__") and each.__weakrefoffset__] == []


def test_a_traceback_names_file_line_and_function() -> None:
    """Also of the compiled build, where no frame has run."""
    with pytest.raises(StatusError) as caught:
        parse(b"GET", b"/api/%zz")
    outer, inner = traceback.extract_tb(caught.value.__traceback__)[-2:]
    assert (outer.name, outer.line) == ("parse", "_refuse_bad_escapes(raw_path)")
    assert inner.name == "_refuse_bad_escapes"
    assert str(inner.line).startswith("raise StatusError(400, ")
    assert Path(inner.filename).parts[-3:] == ("mcproxy", "kube", "requestinfo.py")


NATIVE = "import sys; sys.path.insert(0, 'packaging'); import native; {}; sys.exit(native.main([]))"


@pytest.mark.parametrize(
    ("change", "compiler", "said"),
    [
        ("pass", "/nowhere/cc", "the C compiler '/nowhere/cc' is missing: install gcc"),
        (
            "native.sysconfig.get_path = lambda name: '/nowhere'",
            "true",
            "Python's headers are missing, /nowhere/Python.h: install them",
        ),
    ],
)
def test_what_is_missing_is_said_before_anything_is_built(change: str, compiler: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NATIVE.format(change)],
        cwd=ROOT,
        env={**os.environ, "CC": compiler},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"native.py: {said}")
    assert len(done.stderr.splitlines()) == 1
