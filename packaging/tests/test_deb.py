"""The Debian package in a minimal Debian: lintian; installed, upgraded with an edited conffile, removed, purged."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcproxy import __version__

ROOT = Path(__file__).parents[2]
PATIENCE = 300.0
EDITED = "# edited by the operator\n"


@pytest.fixture(scope="session")
def package() -> Path:
    """What `make deb` has built."""
    architecture = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout
    return ROOT / "dist" / f"mcproxy_{__version__}_{architecture.strip()}.deb"


@pytest.fixture(scope="session")
def newer(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a later version, in which the configuration is another one too."""
    folder = tmp_path_factory.mktemp("newer")
    subprocess.run(["dpkg-deb", "--raw-extract", str(package), str(folder / "root")], check=True)
    control = folder / "root/DEBIAN/control"
    control.write_text(control.read_text().replace(f"Version: {__version__}\n", f"Version: {__version__}+1\n"))
    for name in ("etc/mcproxy/mcproxy.yaml", "etc/logrotate.d/mcproxy"):
        path = folder / "root" / name
        path.write_text(path.read_text() + "# of the newer package\n")
    target = folder / "newer.deb"
    command = ["dpkg-deb", "--root-owner-group", "-Zxz", "-z0", "--build", str(folder / "root"), str(target)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(folder / "root")
    return target


class Debian:
    """A minimal Debian in a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        subprocess.run(
            ["tar", "--extract", "--file", str(ROOT / "build/debian.tar"), "--directory", str(path)], check=True
        )
        path.chmod(0o755)
        subprocess.run(["mount", "-t", "proc", "none", str(path / "proc")], check=True)

    def remove(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.path / "proc")], check=True)
        shutil.rmtree(self.path)

    def run(self, *command: str, user: str = "root") -> subprocess.CompletedProcess[str]:
        """Run a program in it."""
        chroot = [str(shutil.which("chroot")), f"--userspec={user}", str(self.path)]
        environ = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
        environ["DEBIAN_FRONTEND"] = "noninteractive"
        return subprocess.run(
            [*chroot, *command], capture_output=True, text=True, timeout=PATIENCE, env=environ, check=False
        )

    def dpkg(self, *arguments: str) -> str:
        done = self.run("dpkg", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def install(self, package: Path) -> str:
        """Install it, or upgrade to it; an edited conffile is kept, as apt does when it may not ask."""
        shutil.copy(package, self.path / "tmp/mcproxy.deb")
        return self.dpkg("--force-confdef", "--force-confold", "--install", "/tmp/mcproxy.deb")

    def file(self, name: str) -> Path:
        return self.path / name.lstrip("/")

    def owner(self, name: str) -> tuple[str, str, int]:
        """Return the user, the group (numbers as they are there) and the permissions of a file."""
        done = self.run("stat", "--format=%U %G %a", name)
        user, group, mode = done.stdout.split()
        return user, group, int(mode, 8)

    def pretend_systemd(self) -> Path:
        """Let maintainer scripts believe that systemd runs and the service is active; return the log of commands."""
        (self.path / "run/systemd/system").mkdir(parents=True)
        program = self.file("/usr/bin/systemctl")
        program.write_text('#!/bin/sh\necho "$@" >>/tmp/systemctl.log\n')
        program.chmod(0o755)
        return self.file("/tmp/systemctl.log")


@pytest.fixture
def debian(tmp_path: Path) -> Iterator[Debian]:
    system = Debian(tmp_path / "debian")
    yield system
    system.remove()


def test_lintian_finds_no_error(package: Path, figures: dict[str, float]) -> None:
    figures["deb, MiB"] = round(package.stat().st_size / 2**20, 1)
    command = ["lintian", "--allow-root", "--fail-on", "error", "--tag-display-limit", "0", str(package)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    errors = [line for line in done.stdout.splitlines() if line.startswith("E:")]
    assert errors == []
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_installed_upgraded_removed_and_purged(debian: Debian, package: Path, newer: Path) -> None:
    said = debian.install(package)
    assert "systemctl enable --now mcproxy" in said
    assert debian.run("mcproxy", "--version").stdout == f"mcproxy {__version__}\n"
    assert debian.owner("/etc/mcproxy") == ("root", "mcproxy", 0o750)
    assert debian.owner("/usr/bin/mcproxy") == ("root", "root", 0o755)
    assert debian.run("id", "--user", "mcproxy").returncode == 0
    for name in (
        "/usr/lib/systemd/system/mcproxy.service",
        "/usr/lib/sysusers.d/mcproxy.conf",
        "/usr/lib/tmpfiles.d/mcproxy.conf",
        "/etc/default/mcproxy",
        "/etc/logrotate.d/mcproxy",
        "/usr/share/man/man8/mcproxy.8.gz",
        "/usr/share/man/man5/mcproxy.yaml.5.gz",
        "/usr/share/bash-completion/completions/mcproxy",
        "/usr/share/zsh/vendor-completions/_mcproxy",
        "/usr/share/fish/vendor_completions.d/mcproxy.fish",
        "/usr/share/mcproxy/mcproxy.schema.json",
    ):
        assert debian.file(name).is_file(), name
    listed = debian.run("mcproxy", "files").stdout
    for name in (
        "mcproxy/logrotate",
        "man/man8/mcproxy.8.gz",
        "doc/mcproxy/docs/install.md",
        "doc/mcproxy/html/index.html",
    ):
        assert f" /usr/share/{name}\n" in listed
    assert debian.run("mcproxy", "files", "man/man8/mcproxy.8").stdout == (ROOT / "man/mcproxy.8").read_text()
    assert "As HTML: /usr/share/doc/mcproxy/html/index.html\n" in debian.run("mcproxy", "docs").stdout
    assert debian.run("mcproxy", "docs", "install").stdout == (ROOT / "docs/install.md").read_text()
    assert "The version of this file format." in debian.run("mcproxy", "docs", "mcproxy.yaml").stdout
    offline = debian.run("mcproxy", "check", "--offline", user="mcproxy")
    assert offline.returncode == 0, offline.stdout + offline.stderr
    assert debian.dpkg("--verify", "mcproxy") == ""

    # Debian's own idea of the log files, by its own logrotate.
    debian.run("install", "-d", "-m", "0750", "-o", "mcproxy", "-g", "mcproxy", "/var/log/mcproxy", "/var/lib/mcproxy")
    for name in ("something", "access.log"):
        debian.run("sh", "-c", f"echo line >/var/log/mcproxy/{name}", user="mcproxy")
    rotated = debian.run("logrotate", "--force", "/etc/logrotate.d/mcproxy")
    assert (rotated.returncode, rotated.stderr) == (0, "")
    assert debian.owner("/var/log/mcproxy/access.log.1")[0] == "mcproxy"
    assert not debian.file("/var/log/mcproxy/access.log").exists()

    conffile, other = debian.file("/etc/mcproxy/mcproxy.yaml"), debian.file("/etc/logrotate.d/mcproxy")
    conffile.write_text(EDITED + conffile.read_text())
    debian.run("chgrp", "root", "/etc/mcproxy")
    debian.install(newer)
    assert f"{__version__}+1" in debian.dpkg("--status", "mcproxy")
    assert conffile.read_text().startswith(EDITED)
    assert "# of the newer package" not in conffile.read_text()
    assert "# of the newer package" in other.read_text()
    assert debian.file("/etc/mcproxy/mcproxy.yaml.dpkg-dist").is_file()
    assert debian.owner("/etc/mcproxy") == ("root", "root", 0o750)

    debian.dpkg("--remove", "mcproxy")
    assert conffile.read_text().startswith(EDITED)
    assert not debian.file("/usr/bin/mcproxy").exists()
    assert not debian.file("/usr/lib/mcproxy").exists()
    assert debian.file("/var/log/mcproxy/something").exists()

    strangers = keys_as_install_md_makes_them(debian)
    debian.dpkg("--purge", "mcproxy")
    places = [path for path in debian.path.iterdir() if path.name not in ("proc", "tmp", "srv", "var")]
    assert [path for place in places for path in place.rglob("*mcproxy*")] == []
    assert list(debian.file("/var").rglob("*mcproxy*")) == [debian.file("/var/cache/mcproxy")]
    assert [file for file in strangers if not file.is_file()] == []


def keys_as_install_md_makes_them(debian: Debian) -> list[Path]:
    """Make what an operator has after a while; return the files that are none of the package's."""
    files = {
        "/etc/mcproxy/tls/k8s.key": "a key",
        "/etc/mcproxy/secrets/east/token": "a token",
        "/etc/mcproxy/conf.d/east.yaml": "version: 1\n",
        "/etc/mcproxy/.mcproxy.yaml.swp": "a token",
        "/etc/default/mcproxy": "EAST_TOKEN=a token",
        "/etc/systemd/system/mcproxy.service.d/override.conf": "[Service]\n",
        "/etc/systemd/system/mcproxy.socket.d/override.conf": "[Socket]\n",
        "/run/mcproxy/control.sock": "",
        "/var/lib/mcproxy/fleet.cache": "secrets of clusters",
        "/var/log/mcproxy/audit.log.2.gz": "users",
        "/srv/keys/mcproxy.key": "a key that a link in /etc/mcproxy names",
        "/var/cache/mcproxy/unpacked-0123/program": "of the single-file program, which another installation has",
    }
    for name, text in files.items():
        debian.file(name).parent.mkdir(parents=True, exist_ok=True)
        debian.file(name).write_text(text)
    debian.file("/etc/mcproxy/tls/keys").symlink_to("/srv/keys")
    for folder in ("multi-user.target.wants", "sockets.target.wants"):
        kind = "service" if folder.startswith("multi") else "socket"
        debian.file(f"/etc/systemd/system/{folder}").mkdir(parents=True, exist_ok=True)
        debian.file(f"/etc/systemd/system/{folder}/mcproxy.{kind}").symlink_to(
            f"/usr/lib/systemd/system/mcproxy.{kind}"
        )
    return [debian.file(name) for name in files if name.startswith(("/srv/", "/var/cache/"))]


def test_maintainer_scripts_may_run_again(debian: Debian, package: Path) -> None:
    debian.install(package)
    for arguments in (("configure", ""), ("configure", __version__), ("configure", __version__)):
        done = debian.run("sh", "/var/lib/dpkg/info/mcproxy.postinst", *arguments)
        assert done.returncode == 0, done.stderr
    for script, argument in (("prerm", "upgrade"), ("prerm", "remove"), ("postrm", "purge"), ("postrm", "purge")):
        done = debian.run("sh", f"/var/lib/dpkg/info/mcproxy.{script}", argument)
        assert done.returncode == 0, done.stderr


def test_where_systemd_runs_an_upgrade_replaces_the_daemon_and_a_removal_stops_it(
    debian: Debian, package: Path, newer: Path
) -> None:
    commands = debian.pretend_systemd()
    debian.install(package)
    assert commands.read_text().splitlines() == ["daemon-reload"]
    debian.install(newer)
    said = commands.read_text().splitlines()[1:]
    assert [line for line in said if line != "daemon-reload"] == [
        "--quiet is-active mcproxy.service",
        "kill --kill-who=main --signal=USR2 mcproxy.service",
    ]
    debian.dpkg("--remove", "mcproxy")
    assert "disable --now mcproxy.service mcproxy.socket" in commands.read_text()


def test_the_files_of_a_debian_host_are_where_the_unit_has_them(package: Path) -> None:
    listed = subprocess.run(["dpkg-deb", "--contents", str(package)], capture_output=True, text=True, check=True).stdout
    modes = {line.split(maxsplit=5)[5].split(" -> ")[0]: line.split()[:2] for line in listed.splitlines()}
    assert all(owner == "root/root" for _, owner in modes.values())
    assert not [name for name, (mode, _) in modes.items() if mode[0] != "l" and re.search("w", mode[4:])]
    assert modes["./usr/bin/mcproxy"][0] == "-rwxr-xr-x"
    conffiles = subprocess.run(
        ["dpkg-deb", "--info", str(package), "conffiles"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert conffiles == ["/etc/default/mcproxy", "/etc/logrotate.d/mcproxy", "/etc/mcproxy/mcproxy.yaml"]
