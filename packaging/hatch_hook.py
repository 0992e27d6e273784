"""Adds the manual as HTML (manual.py) to a wheel; not to an editable one, beside which the sources are.

With MCPROXY_NATIVE=1 in the environment the wheel has the compiled modules too (native.py), and is for this Python and
machine alone. Its tag says linux, not manylinux: the C library that it needs is that of the host on which it was made.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelHook(BuildHookInterface[Any]):
    """hatchling's hook: see pyproject.toml."""

    PLUGIN_NAME = "wheel"
    _made: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make them in a folder of their own, as nothing is left in the checkout."""
        if self.target_name != "wheel" or version == "editable":
            return
        self._made = Path(tempfile.mkdtemp(prefix="mcproxy-wheel-"))
        sys.dont_write_bytecode = True
        main = runpy.run_path(str(Path(self.root, "packaging", "manual.py")))["main"]
        main([str(self._made / "manual")])
        build_data["shared_data"][str(self._made / "manual")] = "share/doc/mcproxy/html"
        if os.environ.get("MCPROXY_NATIVE") == "1":
            self._compile(self._made / "native", build_data)

    def _compile(self, folder: Path, build_data: dict[str, Any]) -> None:
        """Add the extension modules. Raises CalledProcessError."""
        folder.mkdir()
        program = str(Path(self.root, "packaging", "native.py"))
        subprocess.run([sys.executable, "-B", program, "--into", str(folder)], stdout=sys.stderr, check=True)
        for path in sorted(folder.rglob("*.so")):
            build_data["force_include"][str(path)] = str(path.relative_to(folder))
        python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"{python}-{python}-{platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove them."""
        if self._made is not None:
            shutil.rmtree(self._made)
