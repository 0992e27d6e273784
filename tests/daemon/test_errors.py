"""Operational errors are distinguished from bugs."""

import pytest

from mcproxy.config.model import TCPBind
from mcproxy.daemon.errors import DaemonError, describe
from mcproxy.net.bind import BindError
from mcproxy.net.tls_contexts import PairError


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (DaemonError("it is wrong", todo="mend it"), ("it is wrong", "mend it")),
        (BindError(TCPBind("::", 443), "Permission denied"), ("cannot listen on [::]:443: Permission denied", "")),
        (PairError("the key does not fit"), ("the key does not fit", "")),
        (
            PermissionError(13, "Permission denied", "/etc/x"),
            ("/etc/x: Permission denied", "let the daemon's user open it"),
        ),
        (
            FileNotFoundError(2, "No such file or directory", "/x/y.log"),
            ("/x/y.log: No such file or directory", "create it, or its folder, for the daemon's user"),
        ),
        (OSError(28, "No space left on device"), ("No space left on device", "")),
        (ValueError("a bug"), None),
        (KeyError("a bug"), None),
    ],
)
def test_operational_errors_are_distinguished_from_bugs(error: Exception, expected: tuple[str, str] | None) -> None:
    assert describe(error) == expected
