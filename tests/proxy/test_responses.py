"""The headers of our own responses as a kube-apiserver's are, and redirects that keep what routing removed."""

from __future__ import annotations

import json
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from mcproxy.config import model
from mcproxy.kube.status import StatusError, retry_after
from mcproxy.net.wall_time import WallSeconds
from mcproxy.proxy.request import refusal_fields, with_audit_id
from mcproxy.proxy.response_relay import restore_prefix
from tests.proxy.harness import Harness, always, cluster, config, get

GOLDEN = Path(__file__).parents[1] / "golden" / "errors"


def names(fields: bytes) -> list[str]:
    return [line.partition(b":")[0].decode() for line in fields.split(b"\r\n")[:-1]]


@pytest.mark.parametrize("recording", ["403-alice-exec", "401-bad-token-anonymous-on"])
def test_a_refusal_has_the_headers_of_the_recorded_one(recording: str) -> None:
    response = json.loads((GOLDEN / f"{recording}.json").read_text())["response"]
    recorded = {name: value for name, value in response["headers"] if name != "Content-Length"}
    fields = refusal_fields(StatusError(response["status"], "x"), b"id", WallSeconds(1_763_717_656.0))
    assert set(recorded) <= set(names(fields))
    assert b"Cache-Control: " + recorded["Cache-Control"].encode() + b"\r\n" in fields
    assert b"Date: Fri, 21 Nov 2025 09:34:16 GMT\r\n" in fields


def test_retry_after_is_among_them() -> None:
    assert b"Retry-After: 5\r\n" in refusal_fields(retry_after(503, "x", 5), b"id", WallSeconds(0.0))


@pytest.mark.parametrize("name", [b"Audit-Id", b"audit-id", b"AUDIT-ID"])
def test_the_audit_id_of_a_response_stays(name: bytes) -> None:
    fields = b"Date: x\r\n" + name + b": theirs\r\n"
    assert with_audit_id(fields, b"ours") == fields


def test_a_response_without_audit_id_gets_the_requests() -> None:
    assert with_audit_id(b"Date: x\r\n", b"ours") == b"Date: x\r\nAudit-Id: ours\r\n"


@pytest.mark.parametrize(
    ("location", "restored"),
    [
        (b"/api/v1/pods/web/proxy/", b"/clusters/west/api/v1/pods/web/proxy/"),
        (b"/", b"/clusters/west/"),
        (b"//evil.test/", b"//evil.test/"),
        (b"https://a.test/x", b"https://a.test/x"),
        (b"below/x", b"below/x"),
        (b"?a=/b", b"?a=/b"),
        (b"", b""),
    ],
)
@pytest.mark.parametrize("name", [b"Location", b"content-location", b"LOCATION"])
def test_only_a_path_below_the_root_gets_its_prefix_back(name: bytes, location: bytes, restored: bytes) -> None:
    before, after = b"X-Location: /a\r\n", b"A: /b\r\n"
    fields = restore_prefix(before + name + b": " + location + b"\r\n" + after, b"/clusters/west")
    assert fields == before + name + b": " + restored + b"\r\n" + after


class TestOnTheWire:
    async def test_an_answer_of_our_own_has_them(self, harness: Harness) -> None:
        upstream = harness.upstream()
        server = model.Server(
            name="main", listeners=("tls",), default=True, backend=model.ClusterBackend("east"), dispatch=()
        )
        await harness.serve(config([cluster(upstream.endpoint())], [server]))
        client = await harness.asks(get(b"/api", b"Audit-ID: mine"))
        await harness.until(lambda: client.received.endswith(b"}\n"), "the refusal")
        fields = client.answer()[1]
        assert (fields["audit-id"], fields["cache-control"]) == ("mine", "no-cache, private")
        assert parsedate_to_datetime(fields["date"]).year >= 2025

    async def test_what_is_no_proper_request_gets_them_too(self, harness: Harness) -> None:
        await harness.serve(config([cluster(harness.upstream().endpoint())]))
        client = await harness.asks(b"GET / HTTP/1.1\r\n\r\n")
        await harness.until(lambda: client.received.endswith(b"}\n"), "the refusal")
        code, fields, _ = client.answer()
        assert code == 400
        assert {"date", "audit-id", "cache-control"} <= set(fields)

    @pytest.mark.parametrize("prefix", [b"/clusters/east", b"/apis/cluster.karmada.io/v1alpha1/clusters/east/proxy"])
    async def test_a_redirect_stays_below_the_path_of_its_cluster(self, harness: Harness, prefix: bytes) -> None:
        upstream = harness.upstream()
        server = model.Server(
            name="main", listeners=("tls",), default=True, backend=model.ClustersBackend(("east", "west"))
        )
        clusters = [cluster(upstream.endpoint(), name=name) for name in ("east", "west")]
        await harness.serve(config(clusters, [server]))
        path = b"/api/v1/namespaces/a/pods/b/proxy"
        redirect = b"HTTP/1.1 301 Moved Permanently\r\nLocation: " + path + b"/\r\nContent-Length: 0\r\n\r\n"
        for query in (b"", b"?a=/api"):
            upstream.reply = always(redirect)
            client = await harness.asks(get(prefix + path + query))
            await harness.until(lambda: client.received, "the answer")  # noqa: B023
            assert client.answer()[1]["location"] == (prefix + path).decode() + "/"
        upstream.reply = always(redirect.replace(path, b""))
        client = await harness.asks(get(prefix))
        await harness.until(lambda: client.received, "the answer")
        assert client.answer()[1]["location"] == prefix.decode() + "/"

    async def test_a_redirect_of_a_single_cluster_is_left_alone(self, harness: Harness) -> None:
        upstream = harness.upstream()
        await harness.serve(config([cluster(upstream.endpoint())]))
        upstream.reply = always(b"HTTP/1.1 301 Moved\r\nLocation: /a/\r\nContent-Length: 0\r\n\r\n")
        client = await harness.asks(get(b"/a"))
        await harness.until(lambda: client.received, "the answer")
        assert client.answer()[1]["location"] == "/a/"
