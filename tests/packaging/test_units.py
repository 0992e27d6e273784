"""The units of systemd, as systemd itself judges them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mcproxy.config.load import load

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "systemd"
EXPOSURE = 1.7
"""At most: systemd-analyze(1), `security`. 0 is no exposure, 10 a service without any protection."""


def analyze(*arguments: str | Path, environ: dict[str, str] | None = None) -> str:
    command = ["systemd-analyze", "--no-pager", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root folder with the units, and a program where they look for it."""
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    for name in ("mcproxy.service", "mcproxy.socket"):
        shutil.copy(UNITS / name, units)
    program = tmp_path / "usr/bin/mcproxy"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for target in re.findall(r"[a-z-]+\.target", "".join((UNITS / n).read_text() for n in ("mcproxy.service",))):
        (units / target).write_text("[Unit]\nDescription=for this test\n")
    for target in ("sysinit", "basic", "shutdown", "sockets"):
        (units / f"{target}.target").write_text("[Unit]\nDescription=for this test\nDefaultDependencies=no\n")
    return tmp_path


def drop_in(root: Path, name: str) -> None:
    folder = root / "etc/systemd/system/mcproxy.service.d"
    folder.mkdir(exist_ok=True)
    shutil.copy(UNITS / name, folder)


def exposure(root: Path) -> float:
    report = analyze("security", "--offline=true", f"--root={root}", "mcproxy.service")
    found = re.search(r"Overall exposure level for mcproxy.service: ([0-9.]+)", report)
    assert found, report
    return float(found[1])


def test_the_service_is_exposed_as_little_as_its_work_allows(root: Path) -> None:
    assert exposure(root) <= EXPOSURE


def test_the_judgement_would_see_a_protection_less(root: Path) -> None:
    unit = root / "etc/systemd/system/mcproxy.service"
    unit.write_text(unit.read_text().replace("NoNewPrivileges=yes\n", "").replace("ProtectSystem=strict\n", ""))
    assert exposure(root) > EXPOSURE


@pytest.mark.parametrize("drop_ins", [(), ("credentials.conf",), ("binary.conf",)], ids=str)
def test_systemd_finds_nothing_wrong(root: Path, drop_ins: tuple[str, ...]) -> None:
    for name in drop_ins:
        drop_in(root, name)
    units = root / "etc/systemd/system"
    assert analyze("verify", "--man=no", f"--root={root}", units / "mcproxy.service", units / "mcproxy.socket") == ""


def test_systemd_would_see_a_mistake(root: Path) -> None:
    unit = root / "etc/systemd/system/mcproxy.service"
    unit.write_text(unit.read_text().replace("WatchdogSec=", "WatchDogSec="))
    assert "Unknown key 'WatchDogSec'" in analyze("verify", "--man=no", f"--root={root}", unit)


def test_the_drop_in_for_notify_reload_leaves_nothing_to_run_at_a_reload(root: Path) -> None:
    """systemd 253 and newer know the type; older ones say so, and nothing else."""
    drop_in(root, "notify-reload.conf")
    said = analyze("verify", "--man=no", f"--root={root}", root / "etc/systemd/system/mcproxy.service")
    for line in said.splitlines():
        assert "Failed to parse service type, ignoring: notify-reload" in line
    assert (UNITS / "notify-reload.conf").read_text().splitlines()[-3:] == [
        "[Service]",
        "Type=notify-reload",
        "ExecReload=",
    ]


def test_a_reload_runs_nothing_that_would_read_the_configuration_without_its_credentials() -> None:
    """What ExecReload= runs cannot read the unit's credentials (seen with systemd 252); the daemon can."""
    reloads = [line for line in (UNITS / "mcproxy.service").read_text().splitlines() if line.startswith("ExecReload=")]
    assert reloads == ["ExecReload=mcproxy reload -c /etc/mcproxy/mcproxy.yaml"]


def test_a_credential_is_named_by_its_folder(tmp_path: Path) -> None:
    """As credentials.conf says."""
    (tmp_path / "credentials").mkdir()
    (tmp_path / "credentials" / "east-token").write_text("secret")
    form = 'tokenFile: "${CREDENTIALS_DIRECTORY}/east-token"'
    assert form in (UNITS / "credentials.conf").read_text()
    file = tmp_path / "mcproxy.yaml"
    file.write_text(
        "version: 1\nclusters:\n"
        f"  - {{name: east, endpoints: [{{url: 'https://10.0.0.1:6443'}}], credentials: {{{form}}}}}\n"
    )
    loaded = load(str(file), environ={"CREDENTIALS_DIRECTORY": str(tmp_path / "credentials")})
    (cluster,) = loaded.config.clusters
    assert cluster.credentials is not None
    assert cluster.credentials.token_file == str(tmp_path / "credentials" / "east-token")


def test_every_unit_and_drop_in_is_tested_here() -> None:
    assert {path.name for path in UNITS.iterdir()} == {
        "binary.conf",
        "credentials.conf",
        "mcproxy.service",
        "mcproxy.socket",
        "notify-reload.conf",
    }


def test_the_folders_of_the_example_are_those_that_systemd_makes() -> None:
    example, unit = (ROOT / "etc/mcproxy.yaml").read_text(), (UNITS / "mcproxy.service").read_text()
    for key, path in (("RuntimeDirectory", "/run/mcproxy/"), ("StateDirectory", "/var/lib/mcproxy")):
        assert re.search(rf"^{key}=mcproxy( |$)", unit, re.MULTILINE)
        assert path in example
    assert "WatchdogSec=" in unit


def test_credential_plugins_have_a_home_that_they_can_write() -> None:
    lines = (UNITS / "mcproxy.service").read_text().splitlines()
    assert "Environment=HOME=%S/mcproxy/home" in lines
    assert "StateDirectory=mcproxy mcproxy/home" in lines
    assert "StateDirectoryMode=0700" in lines
