"""Which build is chosen (mcproxy/compiled.py), and that compiled modules which do not fit the sources never run."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from mcproxy import compiled

SUFFIX = EXTENSION_SUFFIXES[0]
SOABI = SUFFIX[1:-3]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of a package with one module, for which an extension module stands that is none."""
    package = tmp_path / "mcproxy"
    package.mkdir()
    for name in ("__init__.py", "compiled.py"):
        (package / name).write_bytes(Path(compiled.__file__).with_name(name).read_bytes())
    (tmp_path / "pyproject.toml").touch()
    (package / "exchange.py").write_text("SOURCE = True\n")
    (package / f"exchange{SUFFIX}").write_bytes(b"no extension module")
    (tmp_path / (compiled.LIBRARY + SUFFIX)).touch()
    compiled.write_record(tmp_path, SOABI, ["mcproxy/exchange.py"], ["mcproxy/exchange.py"])
    return tmp_path


def run(folder: Path, program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `program` on the package in `folder`."""
    environment = {key: value for key, value in os.environ.items() if key != compiled.VARIABLE}
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(folder), **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


BUILD = "import mcproxy; print(mcproxy.BUILD)"


def test_compiled_modules_run_where_they_fit_the_sources(checkout: Path) -> None:
    assert run(checkout, BUILD).stdout == "compiled\n"
    done = run(checkout, "import mcproxy.exchange")
    assert "ImportError" in done.stderr
    assert f"exchange{SUFFIX}" in done.stderr, "the extension module was taken"


@pytest.mark.parametrize("program", [BUILD, "import mcproxy.exchange as e; assert e.SOURCE; print('pure')"])
def test_the_variable_takes_the_sources(checkout: Path, program: str) -> None:
    assert run(checkout, program, MCPROXY_PURE="1").stdout == "pure\n"


@pytest.mark.parametrize("value", ["", "0"])
def test_the_variable_can_say_no(checkout: Path, value: str) -> None:
    assert run(checkout, BUILD, MCPROXY_PURE=value).stdout == "compiled\n"


def test_the_variable_takes_the_sources_though_the_build_is_stale(checkout: Path) -> None:
    (checkout / "mcproxy" / "exchange.py").write_text("SOURCE = True  # edited\n")
    assert run(checkout, BUILD, MCPROXY_PURE="1").stdout == "pure\n"


def test_a_source_that_was_touched_is_the_same(checkout: Path) -> None:
    os.utime(checkout / "mcproxy" / "exchange.py", (1, 1))
    assert run(checkout, BUILD).stdout == "compiled\n"


def edit(checkout: Path) -> None:
    (checkout / "mcproxy" / "exchange.py").write_text("SOURCE = 1234\n")  # of the same size


def remove_the_source(checkout: Path) -> None:
    (checkout / "mcproxy" / "exchange.py").unlink()


def remove_the_record(checkout: Path) -> None:
    (checkout / "mcproxy" / f"{compiled.RECORD}-{SOABI}.txt").unlink()


def remove_an_extension_module(checkout: Path) -> None:
    (checkout / "mcproxy" / f"exchange{SUFFIX}").unlink()


def remove_the_library(checkout: Path) -> None:
    (checkout / (compiled.LIBRARY + SUFFIX)).unlink()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (edit, "were built from another mcproxy/exchange.py"),
        (remove_the_source, "were built from another mcproxy/exchange.py"),
        (remove_the_record, "were built only in part"),
        (remove_the_library, "were built only in part"),
        (remove_an_extension_module, "lack that of mcproxy/exchange.py"),
    ],
)
def test_a_build_that_does_not_fit_is_an_error_that_says_what_to_do(
    checkout: Path, change: object, reason: str
) -> None:
    assert callable(change)
    change(checkout)
    done = run(checkout, BUILD)
    assert done.returncode != 0
    message = done.stderr.splitlines()[-1]
    assert reason in message
    assert "run `make native`" in message
    assert "MCPROXY_PURE=1" in message


def test_nothing_is_compared_where_the_package_is_installed(checkout: Path) -> None:
    (checkout / "pyproject.toml").unlink()
    edit(checkout)
    remove_the_record(checkout)
    assert run(checkout, BUILD).stdout == "compiled\n"


def test_a_build_for_another_python_is_none(checkout: Path) -> None:
    for path in [*checkout.rglob(f"*{SUFFIX}"), *checkout.rglob("compiled-*.txt")]:
        path.rename(str(path).replace("cpython-3", "cpython-29"))
    assert run(checkout, BUILD).stdout == "pure\n"
    assert run(checkout, "import mcproxy.exchange as e; print(e.SOURCE)").stdout == "True\n"
