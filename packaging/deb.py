"""Makes the Debian package: the tree (tree.py) in /usr/lib/mcproxy, and around it what a daemon has on Debian.

usage: deb.py TREE FOLDER [VERSION]

It depends on the C library alone. The program is /usr/bin/mcproxy. The service is neither enabled nor started by the
installation, since no configuration suits a host that has none yet.
"""

from __future__ import annotations

import email.utils
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import tree as program_tree

ROOT = Path(__file__).parents[1]
DEBIAN = Path(__file__).with_name("debian")

#: From the checkout to its place in the package; manual pages are compressed.
FILES = {
    "etc/mcproxy.yaml": "etc/mcproxy/mcproxy.yaml",
    "packaging/debian/copyright": "usr/share/doc/mcproxy/copyright",
    "packaging/debian/default": "etc/default/mcproxy",
    "packaging/debian/lintian-overrides": "usr/share/lintian/overrides/mcproxy",
    "packaging/logrotate": "etc/logrotate.d/mcproxy",
    "packaging/mcproxy.sysusers": "usr/lib/sysusers.d/mcproxy.conf",
    "packaging/mcproxy.tmpfiles": "usr/lib/tmpfiles.d/mcproxy.conf",
    "systemd/mcproxy.service": "usr/lib/systemd/system/mcproxy.service",
    "systemd/mcproxy.socket": "usr/lib/systemd/system/mcproxy.socket",
}
COMPRESSED = {
    "CHANGELOG.md": "usr/share/doc/mcproxy/NEWS.gz",
    "man/mcproxy.8": "usr/share/man/man8/mcproxy.8.gz",
    "man/mcproxy.yaml.5": "usr/share/man/man5/mcproxy.yaml.5.gz",
}
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/mcproxy",
    "zsh": "usr/share/zsh/vendor-completions/_mcproxy",
    "fish": "usr/share/fish/vendor_completions.d/mcproxy.fish",
}
SCRIPTS = ("postinst", "prerm", "postrm")

PROGRAM = """\
#!/usr/lib/mcproxy/bin/mcproxy -I
import sys

from mcproxy.cli.main import main

sys.exit(main())
"""

CONTROL = """\
Package: mcproxy
Version: {version}
Architecture: {architecture}
Maintainer: {maintainer}
Installed-Size: {size}
Depends: libc6 (>= {glibc}), passwd
Recommends: systemd, logrotate
Section: net
Priority: optional
Description: proxy in front of one or many Kubernetes clusters
 One daemon, one YAML file, in front of one or many kube-apiservers: a reverse
 proxy that passes users on by impersonation, and an aggregate of several
 clusters that clients see as one.
 .
 The package has its own Python and all libraries that it needs.
"""
MAINTAINER = f"{os.environ.get('DEBFULLNAME', 'mcproxy')} <{os.environ.get('DEBEMAIL', 'mcproxy@localhost')}>"


def stage(tree: Path, root: Path) -> None:
    """Put the package's files below `root`. Raises CalledProcessError and OSError."""
    private = root / "usr/lib/mcproxy"
    shutil.copytree(tree, private, symlinks=True, ignore=shutil.ignore_patterns("share", "made"))
    for name in ("mcproxy", "doc/mcproxy"):
        shutil.copytree(tree / "share" / name, root / "usr/share" / name)
    (private / "share").symlink_to("../../share")
    for source, target in FILES.items():
        _place(root / target, (ROOT / source).read_bytes())
    for source, target in COMPRESSED.items():
        _place(root / target, gzip.compress((ROOT / source).read_bytes(), 9, mtime=0))
    for shell, target in COMPLETIONS.items():
        command = [str(tree / "bin" / "mcproxy"), "-I", "-m", "mcproxy", "completion", shell]
        _place(root / target, subprocess.run(command, capture_output=True, check=True).stdout)
    _place(root / "usr/bin/mcproxy", PROGRAM.encode(), 0o755)
    for path in root.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
        elif not path.is_symlink():
            program = path.parent.name == "bin" or path.name.startswith("ld-")
            path.chmod(0o755 if program else 0o644)


def _place(path: Path, data: bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


def control(root: Path, version: str, architecture: str) -> None:
    """Write the control files."""
    folder = root / "DEBIAN"
    changelog = f"mcproxy ({version}) unstable; urgency=medium\n\n  * See NEWS.gz.\n\n -- {MAINTAINER}  {_date()}\n"
    _place(root / "usr/share/doc/mcproxy/changelog.gz", gzip.compress(changelog.encode(), 9, mtime=0))
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    size = sum((path.lstat().st_size + 1023) // 1024 for path in root.rglob("*"))
    text = CONTROL.format(
        version=version,
        architecture=architecture,
        maintainer=MAINTAINER,
        size=size,
        glibc=program_tree.needed_glibc(root / "usr/lib/mcproxy"),
    )
    _place(folder / "control", text.encode())
    conffiles = [f"/{path.relative_to(root)}\n" for path in files if path.is_relative_to(root / "etc")]
    _place(folder / "conffiles", "".join(conffiles).encode())
    sums = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n" for path in files]
    _place(folder / "md5sums", "".join(line for line in sums if "  etc/" not in line).encode())
    for script in SCRIPTS:
        _place(folder / script, (DEBIAN / script).read_bytes(), 0o755)


def _date() -> str:
    return email.utils.formatdate(float(os.environ.get("SOURCE_DATE_EPOCH", (ROOT / "CHANGELOG.md").stat().st_mtime)))


def main(arguments: Sequence[str]) -> int:
    """Write the package; return the exit status."""
    tree, folder = (Path(argument).resolve() for argument in arguments[:2])
    version = arguments[2] if len(arguments) > 2 else program_tree.version()
    architecture = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout
    target = folder / f"mcproxy_{version}_{architecture.strip()}.deb"
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "root"
        root.mkdir(mode=0o755)
        stage(tree, root)
        control(root, version, architecture.strip())
        command = ["dpkg-deb", "--root-owner-group", "-Zxz", "-z1", "--build", str(root), str(target)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    print(f"{target}: {target.stat().st_size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
