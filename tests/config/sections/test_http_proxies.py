"""`proxy` of a cluster: the password comes from its file at every load, and nothing shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mcproxy.config.dump import as_text
from mcproxy.config.load import load
from mcproxy.config.loaded import Loaded
from mcproxy.config.model import HTTPProxy, Secret


def loaded(folder: Path, proxy: dict[str, Any], *, offline: bool = False) -> Loaded:
    cluster = {
        "name": "east",
        "identity": "Passthrough",
        "endpoints": [{"url": "https://10.0.0.1"}],
        "proxy": proxy,
    }
    (folder / "mcproxy.yaml").write_text(json.dumps({"version": 1, "clusters": [cluster]}))
    return load(str(folder / "mcproxy.yaml"), environ={}, offline=offline)


def test_an_address_alone(tmp_path: Path) -> None:
    found = loaded(tmp_path, {"url": "HTTP://Proxy.Example.com:3128/"}).config.clusters[0].proxy
    assert found == HTTPProxy(url="http://proxy.example.com:3128", host="proxy.example.com", port=3128)


def test_the_password_is_read_at_every_load_and_never_shown(tmp_path: Path) -> None:
    proxy = {"url": "http://[fd00::1]:3128", "user": "edge", "passwordFile": "password"}
    for password in ("hush:ä ", "hush-2"):
        (tmp_path / "password").write_text(f"{password}\r\n")
        config = loaded(tmp_path, proxy).config
        assert config.clusters[0].proxy == HTTPProxy(
            url="http://[fd00::1]:3128",
            host="fd00::1",
            port=3128,
            user="edge",
            password=Secret(password),
            password_file=str(tmp_path / "password"),
        )
        for shown in (repr(config), as_text(config, "yaml"), as_text(config, "json")):
            assert "hush" not in shown


def test_offline_neither_a_variable_nor_the_file_is_needed(tmp_path: Path) -> None:
    proxy = {"url": "${PROXY}", "user": "${USER}", "passwordFile": "nosuch"}
    assert loaded(tmp_path, proxy, offline=True).config.clusters[0].proxy is not None
