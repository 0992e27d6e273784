"""A root folder with the program, the C library and nothing else: no shell, Python, user, home folder or network.

The tests run in a namespace of network and mounts of their own (`make package-test`), as root.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

PROGRAM = "usr/local/bin/mcproxy"
CONFIG = "/etc/mcproxy/mcproxy.yaml"
NOBODY = 65534
PATIENCE = 60.0

#: Of the C library; what is missing of these on a newer system is part of libc.so.6 there.
C_LIBRARIES = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1")


class EmptyRoot:
    """The folder. Its `/proc` and two devices are the host's."""

    def __init__(self, path: Path, binary: Path) -> None:
        self.path = path
        self._mounted: list[Path] = []
        for folder in ("proc", "dev", "etc/mcproxy", "run/mcproxy", "usr/local/bin", "tmp"):
            (path / folder).mkdir(parents=True)
        (path / "tmp").chmod(0o1777)
        os.chown(path / "run/mcproxy", NOBODY, NOBODY)
        self.install(binary)
        listed = subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout
        loader = re.search(r"^\s*(/\S*ld-linux\S*)", listed, re.MULTILINE)
        libc = re.search(r"libc\.so\.6 => (\S+)", listed)
        assert loader
        assert libc
        libraries = Path(libc[1]).resolve().parent
        for file in (Path(loader[1]).resolve(), *(libraries / name for name in C_LIBRARIES)):
            if file.exists():
                target = path / str(file).lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(os.path.realpath(file), target)
        named = path / loader[1].lstrip("/")
        if not named.exists():  # a link, as on most distributions
            named.parent.mkdir(parents=True, exist_ok=True)
            named.symlink_to(Path(loader[1]).resolve())
        self.mount("--rbind", "/proc", "proc")
        for device in ("null", "urandom"):
            (path / "dev" / device).touch()
            self.mount("--bind", f"/dev/{device}", f"dev/{device}")

    def install(self, binary: Path) -> None:
        """Put `binary` in the place of the program, at once, as an operator does who has read docs/upgrade.md."""
        making = self.path / f"{PROGRAM}.new"
        shutil.copy2(binary, making)
        making.replace(self.path / PROGRAM)

    def mount(self, *arguments: str) -> None:
        """Mount below the root; the last argument is relative to it. Ends with the namespace."""
        command = ["mount", *arguments[:-1], str(self.path / arguments[-1])]
        subprocess.run(command, check=True)
        self._mounted.append(self.path / arguments[-1])

    def unmount(self, name: str) -> None:
        """Unmount what is mounted there."""
        path = self.path / name
        self._mounted.remove(path)
        subprocess.run(["umount", "--recursive", "--lazy", str(path)], check=True)

    def remove(self) -> None:
        """Unmount and remove all of it."""
        for path in self._mounted:
            subprocess.run(["umount", "--recursive", "--lazy", str(path)], check=True)
        shutil.rmtree(self.path)

    def write(self, name: str, data: str | bytes, mode: int = 0o644) -> Path:
        """Write a file by its path in the root."""
        path = self.path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        path.chmod(mode)
        return path

    def command(self, *arguments: str, user: int = NOBODY, program: str = f"/{PROGRAM}") -> list[str]:
        """Return the command line that runs the program in the root."""
        return [str(shutil.which("chroot")), f"--userspec={user}:{user}", str(self.path), program, *arguments]

    def run(
        self,
        *arguments: str,
        user: int = NOBODY,
        environ: Mapping[str, str] | None = None,
        program: str = f"/{PROGRAM}",
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end, without any variable but `environ`."""
        return subprocess.run(
            self.command(*arguments, user=user, program=program),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env=dict(environ or {}),
            check=False,
        )

    def unpacked(self, folder: str = "tmp/mcproxy-65534") -> list[Path]:
        """Return what is unpacked in a folder of the root."""
        return sorted((self.path / folder).glob("unpacked-*"))
