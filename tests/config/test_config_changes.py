"""What a new configuration changes of the old one, in the file's own names, without a secret."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mcproxy.config import model
from mcproxy.config.config_changes import changes
from tests.services.ingress.config import backend, ingress, path, rule


def endpoint(name: str, host: str = "10.0.0.1", **fields: Any) -> model.EndpointConfig:
    return model.EndpointConfig(name=name, scheme="https", host=host, port=6443, **fields)


def pem(data: bytes = b"one", path: str = "/etc/a.crt") -> model.PEMFile:
    return model.PEMFile(path, data)


def http_proxy(host: str, password: str) -> model.HTTPProxy:
    secret = model.Secret(password)
    return model.HTTPProxy(url=f"http://{host}:1", host=host, port=1, user="u", password=secret)


EAST = model.ClusterConfig(
    name="east",
    endpoints=(endpoint("a"), endpoint("b", "10.0.0.2")),
    tls=model.ClusterTLS(ca=pem()),
    credentials=model.Credentials(token=model.Secret("old-secret")),
    proxy=http_proxy("a", "old-secret"),
)
FLEET = model.Certificate(name="fleet", chain=pem(), key=pem(b"key", "/etc/a.key"), server_names=("a.test",))
SERVER = model.Server(name="east", listeners=("public",), backend=model.ClusterBackend("east"))
CONFIG = model.Config(clusters=(EAST,), certificates=(FLEET,), servers=(SERVER,))


def described(new: model.Config, old: model.Config = CONFIG) -> list[str]:
    return [str(change) for change in changes(old, new)]


def with_east(**fields: Any) -> model.Config:
    return replace(CONFIG, clusters=(replace(EAST, **fields),))


def test_nothing() -> None:
    assert described(CONFIG) == []
    assert described(replace(CONFIG, clusters=(replace(EAST),))) == []


def test_entries_that_are_added_and_removed() -> None:
    west = replace(EAST, name="west")
    assert described(replace(CONFIG, clusters=(EAST, west))) == ["added clusters[west]"]
    assert described(CONFIG, replace(CONFIG, clusters=(EAST, west))) == ["removed clusters[west]"]
    assert described(replace(CONFIG, clusters=(west,))) == ["removed clusters[east]", "added clusters[west]"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"health_check": model.HealthCheck(interval=10.0)},
            ["changed clusters[east].healthCheck.interval: 5s -> 10s"],
        ),
        (
            {"endpoints": (endpoint("a", disabled=True), endpoint("c", "10.0.0.3"))},
            [
                "changed clusters[east].endpoints[a].disabled: false -> true",
                "removed clusters[east].endpoints[b]",
                "added clusters[east].endpoints[c]",
            ],
        ),
        (
            {"endpoints": tuple(reversed(EAST.endpoints))},
            ["changed clusters[east].endpoints: the order of its entries"],
        ),
        ({"tls": model.ClusterTLS(ca=pem(b"two"))}, ["changed clusters[east]: other contents of /etc/a.crt"]),
        (
            {"tls": model.ClusterTLS(ca=pem(b"two", "/etc/b.crt"))},
            ["changed clusters[east].tls.caFile: /etc/a.crt -> /etc/b.crt"],
        ),
        (
            {"credentials": model.Credentials(token=model.Secret("new-secret"))},
            ["changed clusters[east]: another secret"],
        ),
        (
            {
                "proxy": model.HTTPProxy(
                    url="http://b:1", host="b", port=1, user="u", password=model.Secret("old-secret")
                )
            },
            ["changed clusters[east].proxy.url: http://a:1 -> http://b:1"],
        ),
        (
            {
                "proxy": model.HTTPProxy(
                    url="http://a:1", host="a", port=1, user="u", password=model.Secret("new-secret")
                )
            },
            ["changed clusters[east]: another secret"],
        ),
        ({"impersonate_extras": ("a",)}, ['changed clusters[east].impersonateExtras: [] -> ["a"]']),
    ],
)
def test_an_entry_that_changed(fields: dict[str, Any], expected: list[str]) -> None:
    assert described(with_east(**fields)) == expected


def test_a_certificate_that_was_renewed() -> None:
    renewed = replace(FLEET, chain=pem(b"two"), key=pem(b"key two", "/etc/a.key"))
    assert described(replace(CONFIG, certificates=(renewed,))) == [
        "changed certificates[fleet]: other contents of /etc/a.crt",
        "changed certificates[fleet]: other contents of /etc/a.key",
    ]


def test_a_token_file_is_named_whatever_of_it_changed() -> None:
    token = model.StaticToken(token=model.Secret("t"), user="ann")

    def with_tokens(*tokens: model.StaticToken) -> model.Config:
        users = model.Authentication(name="users", token_file=model.TokenFileConfig("/etc/tokens.csv", tokens))
        return replace(CONFIG, authentication=(users,))

    line = ["changed authentication[users]: other contents of /etc/tokens.csv"]
    for changed in (replace(token, groups=("dev",)), replace(token, token=model.Secret("u"))):
        assert described(with_tokens(changed), with_tokens(token)) == line
    assert described(with_tokens(token, replace(token, user="bob")), with_tokens(token)) == line


def test_settings_that_are_no_list() -> None:
    new = replace(CONFIG, daemon=model.DaemonConfig(control_socket="/run/b.sock"), logging=model.Logging(level="debug"))
    assert sorted(described(new)) == [
        "added daemon.controlSocket: /run/b.sock",
        "changed logging.level: info -> debug",
    ]


def test_the_order_of_entries_counts() -> None:
    west = replace(SERVER, name="west")
    assert described(replace(CONFIG, servers=(west, SERVER)), replace(CONFIG, servers=(SERVER, west))) == [
        "changed servers: the order of its entries"
    ]


def test_no_secret_is_ever_shown() -> None:
    tokens = [
        model.TokenFileConfig(
            "/etc/users.csv", tuple(model.StaticToken(model.Secret(secret), "ann") for secret in secrets)
        )
        for secrets in (("s3cret-a",), ("s3cret-b",), ("s3cret-b", "s3cret-c"))
    ]
    plugins = [model.ExecPlugin(command="x", env=(("TOKEN", secret),)) for secret in ("s3cret-d", "s3cret-e")]
    sets = [
        replace(
            CONFIG,
            authentication=(model.Authentication(name="corp", token_file=file),),
            clusters=(replace(EAST, credentials=model.Credentials(exec=plugins[index % 2])),),
        )
        for index, file in enumerate(tokens)
    ]
    for old in (CONFIG, *sets):
        for new in (CONFIG, *sets):
            shown = "\n".join(described(new, old))
            assert "s3cret" not in shown
            assert "old-secret" not in shown
            assert bool(shown) == (old != new)


def test_long_values_and_control_characters_are_made_harmless() -> None:
    (line,) = described(with_east(preserve_host=False, labels=(("a", "x" * 1000 + "\x1b[31m"),)))
    assert line.isprintable()
    assert len(line) < 400


def test_a_listener_with_paths_is_known_by_its_name() -> None:
    listener = model.ListenerConfig(name="admin", bind=model.TCPBind("127.0.0.1", 8001), serves=model.Serves.ADMIN)
    one = replace(CONFIG, listeners=(listener,))
    assert described(replace(one, ingresses=(ingress("web", rule("a.example", path("/", "x"))),)), one) == [
        "added ingresses[web]"
    ]


def test_rules_of_an_ingress_are_known_by_host_and_paths_by_what_they_match() -> None:
    def configured(*, weight: int, second: str = "b.example") -> model.Config:
        east = replace(backend("x", clusters=("east", "west")), weights=(("east", weight), ("west", 1)))
        rules = (
            rule("a.example", path("/", east), path("/y", "y")),
            rule(second, path("/", "z")),
            rule("", path("/", "w")),
        )
        return replace(CONFIG, ingresses=(ingress("web", *rules),))

    old = configured(weight=3)
    key = "ingresses[web].rules[a.example].paths[Prefix /].backend.weights.east"
    assert described(configured(weight=2), old) == [f"changed {key}: 3 -> 2"]
    assert described(configured(weight=3, second="c.example"), old) == [
        "removed ingresses[web].rules[b.example]",
        "added ingresses[web].rules[c.example]",
    ]
    twice = configured(weight=3, second="a.example")  # one host in two rules: shown as it is
    (line,) = described(configured(weight=2, second="a.example"), twice)
    assert line.startswith("changed ingresses[web].rules: [{")
