"""Finds environment variables that differ between a daemon and the process that requests a reload.

A daemon keeps the environment of its start; systemd passes a changed EnvironmentFile= to ExecReload= only.
So `mcproxy reload` sends a keyed digest of each variable that the configuration names, never its value. The daemon
warns of variables that differ, because only a restart applies them.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from typing import Any

_MAX_VARIABLES = 256


def digests(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a request that carry the digests of `variables`."""
    salt = os.urandom(16).hex()
    return {"salt": salt, "environ": {name: _digest(salt, value) for name, value in variables.items()}}


def differing_variables(request: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the request's variables that are unset or have another value in `environ`."""
    salt, sent = request.get("salt"), request.get("environ")
    if not isinstance(salt, str) or not isinstance(sent, dict) or len(sent) > _MAX_VARIABLES:
        return ()
    return tuple(
        sorted(
            name
            for name, digest in sent.items()
            if isinstance(digest, str)
            and (name not in environ or not hmac.compare_digest(_digest(salt, environ[name]).encode(), digest.encode()))
        )
    )


def _digest(salt: str, value: str) -> str:
    return hmac.new(salt.encode("utf-8", "replace"), os.fsencode(value), "sha256").hexdigest()
