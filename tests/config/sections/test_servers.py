"""What servers say of browsers and sessions when it is right; errors are in cases/."""

from pathlib import Path

from mcproxy.config.load import load
from mcproxy.config.model import CORS, Server, SessionsConfig

REST = """version: 1
listeners: [{name: l, bind: "127.0.0.1:1"}]
clusters: [{name: a, endpoints: [{url: "http://127.0.0.1:1"}], identity: Passthrough, credentials: {token: t}}]
authentication: [{name: all, anonymous: {enabled: true}}]
"""


def server(folder: Path, text: str) -> Server:
    more = f"servers: [{{name: a, default: true, backend: {{cluster: a}}, authentication: all{text}}}]\n"
    (folder / "f.yaml").write_text(REST + more)
    loaded = load(str(folder / "f.yaml"), environ={})
    assert loaded.warnings == ()
    return loaded.config.servers[0]


def test_without_a_word_about_them_browsers_get_nothing_and_sessions_last(tmp_path: Path) -> None:
    assert (server(tmp_path, "").cors, server(tmp_path, "").sessions) == (None, SessionsConfig(max_age=0.0))


def test_origins_are_as_browsers_send_them(tmp_path: Path) -> None:
    origins = (
        '"https://Headlamp.Example.com", "https://a.example.com:443", "http://a.example.com:80", "http://[::1]:3000",'
        ' "https://*.example.com:8443", "https://b.example.com:080", "tauri://localhost"'
    )
    assert server(tmp_path, f", cors: {{allowedOrigins: [{origins}]}}").cors == CORS(
        (
            "https://headlamp.example.com", "https://a.example.com", "http://a.example.com", "http://[::1]:3000",
            "https://*.example.com:8443", "https://b.example.com:80", "tauri://localhost",
        )
    )  # fmt: skip


def test_sessions_may_end(tmp_path: Path) -> None:
    text = ", sessions: {maxAge: 8h, endWithCredential: true}"
    assert server(tmp_path, text).sessions == SessionsConfig(max_age=28800.0, end_with_credential=True)
