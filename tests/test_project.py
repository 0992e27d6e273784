"""The rules of the architecture, as tests (docs/architecture.md): imports, and the libraries that the daemon loads."""

import ast
import configparser
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.clock import DATE, START, Clock, MemoryReactorClock

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "mcproxy"
SIMULATED = ROOT / "kubesim"
BIN = Path(sys.executable).parent


def run(*command: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **more}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=250, check=False, env=environ)


def tool(name: str) -> Path:
    path = BIN / name
    assert path.exists(), f"{path} is missing: run `make test`, or pip install -e '.[test]'"
    return path


def modules_loaded_by(statement: str) -> set[str]:
    done = run(sys.executable, "-c", f"import sys\n{statement}\nprint(*sys.modules, sep='\\n')")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def ruff(path: str, code: str) -> str:
    """What ruff says of `code`, were it the file `path`."""
    done = subprocess.run(
        [tool("ruff"), "check", "--no-cache", "--stdin-filename", path, "--output-format", "concise", "-"],
        input=code, capture_output=True, text=True, cwd=ROOT, timeout=250, check=False,
    )  # fmt: skip
    return done.stdout


def test_packages_import_only_what_the_architecture_allows() -> None:
    done = run(tool("lint-imports"), "--config", "setup.cfg", "--no-cache")
    assert done.returncode == 0, done.stdout


def test_contracts_know_every_package() -> None:
    """A new package must be given its place in setup.cfg."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    contracts = "\n".join(
        value for name in config.sections() if name.startswith("importlinter") for value in config[name].values()
    )
    for package in sorted(PACKAGE.glob("*/__init__.py")):
        assert re.search(rf"\bmcproxy\.{package.parent.name}\b", contracts), f"{package.parent.name} is in no contract"


def test_layering_contract_fires(tmp_path: Path) -> None:
    """The linter reads what it shall: an import against the layers, in a copy of the package, breaks a contract."""
    for source in [*PACKAGE.rglob("*.py"), *SIMULATED.rglob("*.py")]:
        copy = tmp_path / source.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(source.read_bytes())
    (tmp_path / "setup.cfg").write_bytes((ROOT / "setup.cfg").read_bytes())
    with (tmp_path / "mcproxy/net/__init__.py").open("a") as file:
        file.write("\nimport mcproxy.upstream\n")
    done = subprocess.run(
        [tool("lint-imports"), "--config", "setup.cfg", "--no-cache"], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    assert "mcproxy.net -> mcproxy.upstream" in done.stdout


def test_packages_below_the_daemon_use_nothing_of_config_but_the_model() -> None:
    allowed = {"mcproxy.config", "mcproxy.config.model"}
    offences = [
        f"{source.relative_to(ROOT)} imports {name}"
        for package in ("proxy", "identity", "upstream", "http", "net", "kube", "observe")
        for source in sorted((PACKAGE / package).rglob("*.py"))
        for name in sorted(_imports(source) - allowed)
        if name.startswith("mcproxy.config")
    ]
    assert offences == []


def _imports(source: Path) -> set[str]:
    """Modules that a file imports; `from mcproxy.config import x` counts as mcproxy.config.x."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source.read_bytes())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module == "mcproxy.config":
                found.update(f"mcproxy.config.{alias.name}" for alias in node.names)
    return found


@pytest.mark.parametrize(
    "code",
    [
        "from twisted.internet import reactor\n\nreactor.run()\n",
        "import twisted.internet.reactor\n\ntwisted.internet.reactor.run()\n",
        "def f() -> None:\n    from twisted.internet import reactor\n\n    reactor.run()\n",
    ],
)
def test_importing_the_reactor_outside_the_daemon_is_a_lint_error(code: str) -> None:
    assert "TID251" in ruff("mcproxy/http/sample.py", code)
    assert "TID251" not in ruff("mcproxy/daemon/sample.py", code)


@pytest.mark.parametrize("module", ["joserfc", "kubernetes"])
def test_importing_a_heavy_library_at_module_level_is_a_lint_error(module: str) -> None:
    assert "TID253" in ruff("mcproxy/upstream/sample.py", f"import {module}\n\n{module}.get()\n")
    assert "TID253" not in ruff(
        "mcproxy/upstream/sample.py", f"def f() -> None:\n    import {module}\n\n    {module}.get()\n"
    )


@pytest.mark.parametrize(
    "module", ["mcproxy.cli.run", "mcproxy.daemon.main", "mcproxy.daemon.service", "mcproxy.config.load"]
)
def test_daemon_loads_no_heavy_library(module: str) -> None:
    loaded = modules_loaded_by(f"import {module}")
    assert loaded.isdisjoint({"kubernetes", "aiohttp", "pydantic", "twisted.web.client", "kubesim"})


@pytest.mark.parametrize("module", ["mcproxy.daemon.main", "mcproxy.daemon.service"])
def test_importing_the_daemon_installs_no_reactor(module: str) -> None:
    assert "twisted.internet.reactor" not in modules_loaded_by(f"import {module}")


@pytest.mark.parametrize(
    "part",
    ["daemon.processes", "daemon.upgrade", "proxy.keeper", "dispatch.tables.shared_memory", "dispatch.tables.mutexes"],
)
def test_one_process_loads_nothing_that_only_several_need(part: str) -> None:
    loaded = loaded_by_one_process()
    assert not [name for name in loaded if name.startswith(f"mcproxy.{part}")]


@cache
def loaded_by_one_process() -> set[str]:
    return modules_loaded_by("import mcproxy.daemon.main, mcproxy.daemon.service")


def test_leaves_and_the_configuration_need_no_twisted() -> None:
    assert "twisted" not in modules_loaded_by("import mcproxy.config.load, mcproxy.observe.record, mcproxy.kube.status")


def test_every_module_has_a_docstring() -> None:
    for source in sorted([*PACKAGE.rglob("*.py"), *SIMULATED.rglob("*.py")]):
        assert ast.get_docstring(ast.parse(source.read_bytes())), f"{source.relative_to(ROOT)} has no docstring"


def test_tests_are_packages() -> None:
    """Two test files of one name in different folders need it."""
    for folder in {test.parent for test in (ROOT / "tests").rglob("test_*.py")}:
        assert (folder / "__init__.py").exists(), f"{folder.relative_to(ROOT)} has no __init__.py"


def test_nothing_is_left_for_later() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX)\b|pytest\.(mark\.)?(skip|xfail)")
    offences = [
        f"{source.relative_to(ROOT)}:{number}"
        for folder in ("mcproxy", "kubesim", "tests", "bench")
        for source in sorted((ROOT / folder).rglob("*.py"))
        if source != Path(__file__)
        for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), 1)
        if marks.search(line)
    ]
    assert offences == []


def test_no_clock_of_a_test_has_one_number_for_durations_and_dates() -> None:
    """Twisted's fake clocks do: with them a monotonic time that is written as a date looks right."""
    twisteds = re.compile(r"twisted\.internet\.(task|testing) import [^#\n]*Clock|\b(task|testing)\.\w*Clock\b")
    offences = [
        str(source.relative_to(ROOT))
        for folder in ("mcproxy", "kubesim", "tests")
        for source in sorted((ROOT / folder).rglob("*.py"))
        if source != ROOT / "tests/support/clock.py" and twisteds.search(source.read_text(encoding="utf-8"))
    ]
    assert offences == []
    for clock in (Clock(), MemoryReactorClock()):
        clock.advance(5)
        assert (clock.seconds(), clock.wall_seconds()) == (START + 5, DATE + 5)


def test_no_fixture_gives_durations_as_dates() -> None:
    """What a test gives as `wall_seconds` comes from another's, so that it differs from `seconds` as a Clock's does."""
    offences = [
        f"{source.relative_to(ROOT)}:{given.lineno}: {ast.unparse(given)}"
        for source in sorted((ROOT / "tests").rglob("*.py"))
        if source != ROOT / "tests/support/clock.py" and "wall_seconds" in (text := source.read_text(encoding="utf-8"))
        for given in _wall_clocks_given(ast.parse(text))
        if not re.search(r"\bwall_seconds\b|\btime\.time\b|\bDATE\b", ast.unparse(given))
    ]
    assert offences == []


def _wall_clocks_given(tree: ast.Module) -> Iterator[ast.expr | ast.stmt]:
    """Yield the values that become somebody's `wall_seconds`: results of functions, keywords, attributes, patches."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name="wall_seconds", body=body):
                yield from (line for line in body if isinstance(line, ast.Return))
            case ast.keyword(arg="wall_seconds", value=value):
                yield value
            case ast.Assign(targets=[ast.Attribute(attr="wall_seconds") | ast.Name(id="wall_seconds")], value=value):
                yield value
            case ast.Call(args=[_, ast.Constant(value="wall_seconds"), value]):  # setattr
                yield value


def test_what_takes_more_than_five_seconds_is_marked_as_slow() -> None:
    """By the report of the last run of `make suite` here, which leaves out what has the mark; a fresh clone has none.

    The set-up of what a file's tests share counts for the first of them.
    """
    report = ROOT / ".ci/results/suite.xml"
    cases = ElementTree.parse(report).iter("testcase") if report.exists() else ()
    slow = [
        f"{case.get('classname')}::{case.get('name')}: {case.get('time')} s" for case in cases if _seconds(case) > 5
    ]
    assert slow == [], "make these quicker, or mark them with pytest.mark.slow, for .ci/night"


def _seconds(case: ElementTree.Element) -> float:
    return float(case.get("time", 0))
