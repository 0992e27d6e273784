"""A machine as the manual describes it, in a folder: mcproxy serves a simulated cluster, and pages' commands run in it.

Paths such as /etc/mcproxy are folders below the sandbox's, and addresses of examples are those of the cluster and the
daemon. mcproxy, kubectl and the tools of the shell are the real ones. What would change the machine itself (systemctl,
useradd, apt-get, pip and the like) is a script that fails where its files, units or targets are not there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from kubesim.auth.certificates import Authority
from mcproxy import __version__
from tests.e2e.processes import Daemon
from tests.e2e.workers.family import Family
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.ports import reserved_port

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "/etc/mcproxy",
    "/etc/systemd/system",
    "/etc/default",
    "/etc/credstore",
    "/run/mcproxy",
    "/var/lib/mcproxy",
    "/var/log/mcproxy",
    "/var/log/kubernetes",
    "/etc/logrotate.d",
    "/opt/mcproxy",
    "/tmp/mcproxy-files",
    "/usr/lib/sysusers.d",
    "/usr/lib/tmpfiles.d",
    "/usr/local/bin",
    "/usr/local/share",
    "/usr/share/bash-completion/completions",
    "/usr/share/mcproxy",
    "/var/cache/mcproxy",
)
PACKAGES = (
    f"mcproxy-{__version__}-linux-x86_64",
    f"mcproxy-{__version__}-py3-none-any.whl",
    f"mcproxy_{__version__}_amd64.deb",
)
_TIMEOUT = 300.0  # seconds; `pip download` of the air-gapped page takes 30 on a machine with much to do

_WITH_FILE = "run check dump reload upgrade rbac kubeconfig status top"
_SCRIPTS = {
    "mcproxy": f"""
        case " {_WITH_FILE} " in *" $1 "*) case " $* " in *" -c "*|*" --config "*|*" -h "*|*" --help "*) ;;
            *) command=$1; shift; set -- "$command" -c "$SANDBOX/etc/mcproxy/mcproxy.yaml" "$@";; esac;; esac
        exec "$PYTHON" -m mcproxy "$@" """,
    "sudo": """
        while :; do case $1 in -u|-g) shift 2;; -n|-E|-H) shift;; *=*) export "$1"; shift;; *) break;; esac; done
        exec "$@" """,
    "make": """
        for target; do case $target in *=*|-*) ;; *) grep -q "^$target:" "$SOURCE/Makefile" ||
            { echo "there is no target $target" >&2; exit 1; };; esac; done""",
    "systemctl": """
        verb=$1; shift
        case $verb in daemon-reload|list-timers) exit 0;; esac
        case " status start stop restart reload enable disable kill edit show is-active cat revert " in *" $verb "*) ;;
            *) echo "systemctl has no $verb" >&2; exit 1;; esac
        for word; do case $word in mcproxy|mcproxy.service|mcproxy.socket) exit 0;; esac; done
        exit 1""",
    "journalctl": 'case " $* " in *" -u mcproxy "*) exit 0;; esac; exit 1',
    "man": """
        for page; do case $page in -*|[0-9]) continue;; */*) ;; *) page=$(echo "$SOURCE"/man/"$page".[0-9]);; esac
            [ -e "$page" ] || exit 1; done""",
    "python3": """
        [ "$1 $2" = "-m venv" ] || exec "$PYTHON" "$@"
        mkdir -p "$3/bin"; ln -sf "$SANDBOX/bin/pip" "$3/bin/pip"; ln -sf "$SANDBOX/bin/mcproxy" "$3/bin/mcproxy" """,
    "pip": """
        while [ "$1" = download ]; do for folder; do :; done; mkdir -p "$folder"; break; done
        for word; do case $word in -*) ;; *.whl|*.lock|*.txt|*.tar.gz|.*|/*) [ -e "$word" ] || exit 1;; esac; done""",
    # Groups and users of the manual are not on this machine.
    "chgrp": 'for last; do :; done; [ -e "$last" ]',
    "chown": 'for last; do :; done; [ -e "$last" ]',
}
_NOTHING = (
    "dpkg",
    "useradd",
    "groupadd",
    "apt-get",
    "scp",
    "ssh",
    "git",
    "logrotate",
    "systemd-sysusers",
    "systemd-tmpfiles",
)


class Sandbox:
    """A context manager."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.site = SimulatedClusterProcess("east", options=("--endpoints", "2"), directory=directory / "site")
        self.port, self.admin_port = reserved_port(), reserved_port()
        self._daemon: Daemon | None = None
        self._family = Family()

    def __enter__(self) -> Sandbox:
        self.site.spawn()
        self._make_folders()
        request = '{"auditID":"7f0d1c4e-1234-4f5e-ac7d-123456789abc"}\n'  # the one of docs/audit.md
        (self.directory / "var/log/kubernetes/audit.log").write_text(request)
        self._make_scripts()
        self.site.wait_ready()
        self._make_work_folder()
        self.go_to_clone()
        return self

    def _make_folders(self) -> None:
        for folder in FOLDERS:
            (self.directory / folder[1:]).mkdir(parents=True, exist_ok=True)
        (self.directory / "var/lib/mcproxy").chmod(0o700)

    def __exit__(self, *_: object) -> None:
        self.stop_daemon()
        self.site.cleanup()

    def _make_scripts(self) -> None:
        folder = self.directory / "bin"
        folder.mkdir()
        for name, script in {**_SCRIPTS, **dict.fromkeys(_NOTHING, "exit 0")}.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)

    def _make_work_folder(self) -> None:
        """The folder in which commands run: that of a clone."""
        work = self.directory / "work"
        (work / "mcproxy").mkdir(parents=True)
        for entry in ROOT.iterdir():
            if not entry.name.startswith(".") and entry.name not in ("mcproxy", "dist"):
                (work / entry.name).symlink_to(entry)
        # What `make dist`, `make binary` and `make deb` would make, there and where the manual carries it to.
        (work / "dist").mkdir()
        for name in PACKAGES:
            (work / "dist" / name).write_text('#!/bin/sh\nexec mcproxy "$@"\n')
            (work / "dist" / name).chmod(0o755)
            (work / name).symlink_to(f"dist/{name}")
            (work / f"{name}.sha256").symlink_to(f"dist/{name}.sha256")
        shutil.copy(self.site.kubeconfig, work / "east.kubeconfig")

    # -- the daemon ---------------------------------------------------------------------------------------------------

    def configure(self, text: str) -> None:
        """Write /etc/mcproxy/mcproxy.yaml with certificates beside it, and nothing else."""
        self.stop_daemon()
        self._make_folders()  # a page may take them away
        self.run("python3 -m venv /opt/mcproxy")
        folder = self.directory / "etc/mcproxy"
        shutil.rmtree(folder)
        for name in ("tls", "east", "conf.d"):
            (folder / name).mkdir(parents=True)
        authority = Authority("site CA")
        names = ["127.0.0.1", "localhost", "k8s.example.com", "east.k8s.example.com"]
        authority.server(names).write(folder / "tls", "k8s")
        (folder / "tls/clients-ca.crt").write_bytes(authority.pem)
        shutil.copy(self.site.ca, folder / "east/ca.crt")
        (folder / "east/token").write_text(self.site.tokens["mcproxy"])
        (folder / "users.csv").write_text("alice-token,alice,,\n")
        (folder / "users.csv").chmod(0o600)
        (folder / "east/token").chmod(0o600)
        (folder / "mcproxy.yaml").write_text(self.localized(text))

    def start_daemon(self) -> None:
        """Start one with the file as it is."""
        folder = self.directory / "etc/mcproxy"
        text = (folder / "mcproxy.yaml").read_text()
        self._daemon = Daemon(folder, text, environ=self._family.environ).start()

    def stop_daemon(self) -> None:
        if self._daemon is not None:
            self._family.kill_all()  # a command may have replaced it by another process (`mcproxy upgrade`)
            self._daemon.stop()
            self._daemon = None

    # -- commands -----------------------------------------------------------------------------------------------------

    def localized(self, text: str) -> str:
        """Return a command or a file of the manual with the paths and addresses of the sandbox."""
        for folder in FOLDERS:
            text = re.sub(rf"(?<![\w.]){folder}\b", f"{self.directory}{folder}", text)
        text = text.replace("https://10.1.0.11:6443", self.site.urls[0]).replace(
            "https://10.1.0.12:6443", self.site.urls[1]
        )
        text = re.sub(r"\b(?:0\.0\.0\.0|127\.0\.0\.1):6443\b", f"127.0.0.1:{self.port}", text)
        text = re.sub(r"\b(?:0\.0\.0\.0|127\.0\.0\.1):9901\b", f"127.0.0.1:{self.admin_port}", text)
        return text.replace("<this repository>", "URL")

    def write(self, path: str, text: str) -> None:
        """Write a file that the manual shows."""
        file = Path(self.localized(path))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self.localized(text))

    def go_to_clone(self) -> None:
        """Let the next command run in the folder of the clone."""
        (self.directory / "folder").write_text(f"{self.directory}/work")

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the manual in a shell, in the folder of the one before; one that follows is ended (124)."""
        if command.endswith((" -w", " -f")):
            command = f"timeout 1 {command}"
        folder = self.directory / "folder"
        script = f"trap 'pwd > {folder}' EXIT\n{self.localized(command)}"
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder.read_text().strip(),
            env={
                **os.environ,
                "PATH": f"{self.directory / 'bin'}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                "PYTHON": sys.executable,
                "SANDBOX": str(self.directory),
                "SOURCE": str(ROOT),
                "HOME": str(self.directory),
                "KUBECONFIG": str(self.site.kubeconfig),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
