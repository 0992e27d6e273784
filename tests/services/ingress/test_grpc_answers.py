"""The proxy's own answers to gRPC calls."""

from __future__ import annotations

from typing import Any, cast

import pytest

from mcproxy.net.wall_time import WallSeconds
from mcproxy.services.ingress.ingress_request import grpc_answer, is_grpc

NOW = WallSeconds(1_790_000_000.0)


class Head:
    def __init__(self, kind: bytes | None) -> None:
        self.kind = kind

    def header(self, name: bytes) -> bytes | None:
        assert name == b"content-type"
        return self.kind


@pytest.mark.parametrize(
    ("status", "code"),
    [
        # grpc/doc/http-grpc-status-mapping.md
        *((400, 13), (401, 16), (403, 7), (404, 12), (429, 14), (502, 14), (503, 14)),
        *((413, 8), (500, 14), (504, 4)),
        *((418, 2), (308, 2), (421, 2)),  # UNKNOWN
    ],
)
def test_an_http_status_is_a_grpc_status(status: int, code: int) -> None:
    assert b"\r\ngrpc-status: %d\r\n" % code in grpc_answer(status, "no pod", NOW)


def test_a_message_is_percent_encoded() -> None:
    fields = grpc_answer(503, "no pod: \xe9\n100%", NOW)
    assert fields == (
        b"Content-Type: application/grpc\r\ngrpc-status: 14\r\ngrpc-message: no pod: %C3%A9%0A100%25\r\n"
        b"Date: Mon, 21 Sep 2026 14:13:20 GMT\r\n"
    )


@pytest.mark.parametrize(
    ("kind", "grpc"),
    [
        (b"application/grpc", True),
        (b"Application/gRPC", True),
        (b"application/grpc+proto", True),
        (b"application/grpc; charset=utf-8", True),
        (b"application/grpc-web", False),
        (b"application/grpc-web+proto", False),
        (b"application/json", False),
        (None, False),
    ],
)
def test_what_a_grpc_call_is(kind: bytes | None, grpc: bool) -> None:
    assert is_grpc(cast("Any", Head(kind))) is grpc
