"""/healthz, /livez and /readyz of an aggregate: what it needs, in the forms of a kube-apiserver."""

from __future__ import annotations

import json

import pytest

from mcproxy.config.model.aggregates import UnavailableMembers
from tests.aggregate.discovery.recorded import east, west
from tests.aggregate.discovery.stage import (
    FakeDiscovery,
    FakeSource,
    Response,
    ask,
    discovery_of,
    fleet,
    now,
    recorded_response,
    source,
)

PROBES = ["healthz", "livez", "readyz"]


def both() -> tuple[FakeSource, FakeSource]:
    return source("east", east().groups), source("west", west().groups)


def probe(path: str, *sources: FakeSource, unavailable: UnavailableMembers = UnavailableMembers.STALE) -> Response:
    config = fleet(clusters=tuple(one.name for one in sources), unavailable=unavailable)
    return now(ask(discovery_of(*sources, config=config).serve, path, None))


@pytest.mark.parametrize("name", PROBES)
def test_all_is_well(name: str) -> None:
    response = probe(f"/{name}", *both())
    recorded = recorded_response(f"probes/{name}")
    assert (response.status, response.body) == (recorded.status, recorded.body)
    for field in (b"Content-Type", b"X-Content-Type-Options", b"Cache-Control"):
        assert response.header(field.decode().lower()) == dict(recorded.headers)[field].decode()


@pytest.mark.parametrize("name", PROBES)
def test_verbose_lists_every_cluster(name: str) -> None:
    text = probe(f"/{name}?verbose", *both()).body.decode()
    assert text == f"[+]ping ok\n[+]cluster/east ok\n[+]cluster/west ok\n{name} check passed\n"


def test_the_primary_is_listed() -> None:
    config = fleet(clusters=("west",), primary="east")
    response = now(ask(discovery_of(*both(), config=config).serve, "/readyz?verbose", None))
    assert response.body == b"[+]ping ok\n[+]cluster/west ok\n[+]cluster/east ok\nreadyz check passed\n"


@pytest.mark.parametrize(
    ("unavailable", "away", "status"),
    [
        (UnavailableMembers.STALE, ["west"], 200),
        (UnavailableMembers.STALE, ["east", "west"], 200),
        (UnavailableMembers.PARTIAL, ["west"], 200),
        (UnavailableMembers.PARTIAL, ["east", "west"], 500),
        (UnavailableMembers.FAIL, ["west"], 500),
    ],
)
def test_which_clusters_are_needed(unavailable: UnavailableMembers, away: list[str], status: int) -> None:
    sources = both()
    for one in sources:
        if one.name in away:
            one.go_away()
    assert probe("/readyz", *sources, unavailable=unavailable).status == status
    assert probe("/livez", *sources, unavailable=unavailable).status == 200
    verbose = probe("/readyz?verbose", *sources, unavailable=unavailable).body.decode()
    assert verbose.endswith(f"readyz check {'failed' if status == 500 else 'passed'}\n")
    mark = "failed" if status == 500 else "not needed"
    assert f"[-]cluster/west {mark}: it cannot be reached\n" in verbose


def test_a_failed_probe_says_which_check_without_being_asked() -> None:
    """But not why, since everybody may ask and the cause has addresses."""
    east_, west_ = both()
    west_.go_away(cause="no route to 192.0.2.9")
    response = probe("/readyz", east_, west_, unavailable=UnavailableMembers.FAIL)
    assert response.body.decode() == (
        "[+]ping ok\n[+]cluster/east ok\n[-]cluster/west failed: it cannot be reached\nreadyz check failed\n"
    )


def test_a_cluster_that_was_never_read() -> None:
    fresh = FakeSource("west", FakeDiscovery(known=False, fresh=False))
    assert probe("/readyz", fresh).status == 500
    assert b"[-]cluster/west failed: its discovery has not been read yet" in probe("/readyz", fresh).body


def test_exclude() -> None:
    east_, west_ = both()
    west_.go_away()
    response = probe(
        "/readyz?verbose&exclude=cluster/west&exclude=etcd", east_, west_, unavailable=UnavailableMembers.FAIL
    )
    assert response.status == 200
    assert response.body.decode().splitlines() == [
        "[+]ping ok",
        "[+]cluster/east ok",
        "[+]cluster/west excluded: ok",
        'warn: some health checks cannot be excluded: no matches for "etcd"',
        "readyz check passed",
    ]


def test_one_check() -> None:
    east_, west_ = both()
    west_.go_away()
    assert probe("/readyz/ping", east_, west_).body == b"ok"
    assert probe("/readyz/cluster/east", east_, west_).status == 200
    failed = probe("/readyz/cluster/west", east_, west_)
    assert (failed.status, failed.body) == (500, b"internal server error: it cannot be reached\n")
    assert probe("/readyz/etcd", east_, west_).status == 404
    assert probe("/readyz/etcd", east_, west_).body == b"404 page not found\n"


def test_a_query_of_thousands_of_parameters_is_not_read() -> None:
    assert probe("/readyz?" + "&".join(["verbose"] * 1000), *both()).body == b"ok"


def test_the_paths_of_the_root() -> None:
    response = probe("/", source("east", east().groups))
    paths = json.loads(response.body)["paths"]
    assert paths == sorted(paths)
    assert set(paths) >= {"/api", "/apis/apps/v1", "/openapi/v3", "/version", "/readyz/cluster/east", "/healthz/ping"}
    recorded = set(json.loads(recorded_response("probes/root").body)["paths"])
    assert {path for path in paths if "cluster/" not in path} <= recorded
    assert response.body.startswith(b'{\n  "paths": [\n    "/api",\n')
    assert response.body.endswith(b'"\n  ]\n}')
