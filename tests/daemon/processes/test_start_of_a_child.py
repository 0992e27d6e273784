"""What a child imports: its start is how long the clients of the worker that it replaces wait."""

from __future__ import annotations

import subprocess
import sys


def test_a_worker_without_aggregates_imports_nothing_of_them() -> None:
    program = "import sys, mcproxy.daemon.processes.child; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "mcproxy.daemon.processes.keeper_links" in modules
    for prefix in ("redis", "yaml", "jsonschema_rs", "mcproxy.proxy.keeper", "mcproxy.aggregate.cache.store"):
        assert not [name for name in modules if name == prefix or name.startswith(prefix + ".")]
