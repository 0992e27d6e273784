"""A gRPC server (grpcio) whose messages are plain bytes, and calls to it that block and so run in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc


class GRPCServer:
    """Methods of `/test.Echo`. `cancelled` is set when a call that hangs was cancelled; `deadlines`: what calls had."""

    def __init__(self, name: str = "one", **options: int) -> None:
        self.name = name
        self.cancelled = threading.Event()
        self.hanging = threading.Event()
        self.deadlines: list[float | None] = []
        self.calls = 0
        self._server = grpc.server(ThreadPoolExecutor(16), options=list(options.items()))
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_unary_rpc_method_handler
        handlers = {
            "Unary": unary(self._unary),
            "Join": stream(self._join),
            "Split": grpc.unary_stream_rpc_method_handler(self._split),
            "Talk": grpc.stream_stream_rpc_method_handler(self._talk),
            "Fail": unary(self._fail),
            "FailLate": grpc.unary_stream_rpc_method_handler(self._fail_late),
            "Hang": unary(self._hang),
            "HangStream": grpc.stream_stream_rpc_method_handler(self._hang_stream),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
        self.port: int = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def stop(self, grace: float | None = None) -> Any:
        return self._server.stop(grace)

    def _note(self, context: Any) -> None:
        self.calls += 1
        self.deadlines.append(context.time_remaining())

    def _unary(self, request: bytes, context: Any) -> bytes:
        self._note(context)
        told = dict(context.invocation_metadata())
        context.send_initial_metadata((("x-initial", told.get("x-asked", "none")),))
        context.set_trailing_metadata((("x-last", "end"), ("x-last-bin", b"\x00\xff")))
        return request + b" " + self.name.encode()

    def _join(self, requests: Iterator[bytes], context: Any) -> bytes:
        self._note(context)
        return b"".join(requests)

    def _split(self, request: bytes, context: Any) -> Iterator[bytes]:
        self._note(context)
        for number in range(int(request)):
            yield b"%d" % number

    def _talk(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        self._note(context)
        for request in requests:
            yield b"heard " + request
        yield b"bye"  # after the client has closed its side

    def _fail(self, request: bytes, context: Any) -> bytes:
        self._note(context)
        context.set_trailing_metadata((("x-why", "because"),))
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not so, ünd so weiter")
        raise AssertionError

    def _fail_late(self, request: bytes, context: Any) -> Iterator[bytes]:
        self._note(context)
        yield b"first"
        context.abort(grpc.StatusCode.DATA_LOSS, "later")

    def _hang(self, request: bytes, context: Any) -> bytes:
        self._note(context)
        context.add_callback(self.cancelled.set)
        self.hanging.set()
        self.cancelled.wait(60)
        return b""

    def _hang_stream(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        self._note(context)
        context.add_callback(self.cancelled.set)
        yield b"begun"
        self.hanging.set()
        self.cancelled.wait(60)


class Calls:
    """A channel to the front; each method returns what a call of grpcio does."""

    def __init__(self, port: int) -> None:
        self.channel = grpc.insecure_channel(
            f"127.0.0.1:{port}", options=[("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
        )
        self.unary: Callable[[str], Any] = lambda name: self.channel.unary_unary(f"/test.Echo/{name}")
        self.join: Callable[[str], Any] = lambda name: self.channel.stream_unary(f"/test.Echo/{name}")
        self.split: Callable[[str], Any] = lambda name: self.channel.unary_stream(f"/test.Echo/{name}")
        self.talk: Callable[[str], Any] = lambda name: self.channel.stream_stream(f"/test.Echo/{name}")
