"""What an exec plugin prints, runs and reads is for the operator: no client gets any of it, and the log no secret."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcproxy.config import model
from tests.proxy.harness import always, get
from tests.security.authenticating_proxy import AuthenticatingProxy, bearer

SECRET = "hunter2-hunter2-hunter2"
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2ln"

SCRIPTS = {
    "fails": f'echo "cannot log in with $GIVEN and $2: token {JWT} at /etc/plugin.json" >&2; exit 7',
    "prints nothing of use": f'echo \'{{"token": "{JWT}"}}\'; echo $GIVEN >&2',
    "is not there": "",
}


def with_plugin(configuration: model.Config, plugin: model.ExecPlugin, **changed: Any) -> model.Config:
    """The configuration with `plugin` for the credential of its cluster "east"."""
    credentials = model.Credentials(exec=plugin)
    clusters = [
        replace(cluster, credentials=credentials, **changed) if cluster.name == "east" else cluster
        for cluster in configuration.clusters
    ]
    return replace(configuration, clusters=tuple(clusters))


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
@pytest.mark.parametrize("identity", [model.UpstreamIdentity.PROXY, model.UpstreamIdentity.IMPERSONATE])
async def test_no_client_gets_what_a_plugin_says(
    authenticating_proxy: AuthenticatingProxy, tmp_path: Path, script: str, identity: model.UpstreamIdentity
) -> None:
    proxy = authenticating_proxy
    command = tmp_path / "get-token"
    if script:
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
    plugin = model.ExecPlugin(
        command=str(command), args=("--client-secret", SECRET), env=(("GIVEN", f"env-{SECRET}"),), install_hint="buy it"
    )
    server = model.Server(name="open", listeners=("tls",), default=True, backend=model.ClusterBackend("east"))
    await proxy.serve(with_plugin(proxy.configuration(servers=(server,)), plugin, identity=identity))
    proxy.east.reply = always(b"")
    code, body = await proxy.answer(get().replace(b"k8s.test", b"x.test"), server_name="other.test")
    assert (code, json.loads(body)["message"]) == (
        503,
        'cluster "east" is unavailable: the proxy has no usable credential for it',
    )
    lines = [line for line in proxy.log_lines() if "event=credential_plugin_failed" in line]
    assert len(lines) == 1
    assert str(command) in lines[0]
    for secret in (SECRET, JWT):
        assert secret not in proxy.output()
    if "exit 7" in script:
        assert "cannot log in with *** and ***: token *** at /etc/plugin.json" in lines[0]


async def test_nor_does_whoever_asks_for_impersonation_that_cannot_be_reviewed(
    authenticating_proxy: AuthenticatingProxy, tmp_path: Path
) -> None:
    proxy = authenticating_proxy
    plugin = model.ExecPlugin(command=str(tmp_path / "get-token"))
    await proxy.serve(with_plugin(proxy.configuration(), plugin))
    lines = get(b"/api/v1/pods", bearer(b"boss-0123456789-very-secret-token"), b"Impersonate-User: carol")
    code, body = await proxy.answer(lines)
    assert code == 503
    assert str(tmp_path).encode() not in body
    assert b"get-token" not in body
