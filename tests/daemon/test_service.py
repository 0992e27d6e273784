"""The Service: one configuration after the other, and its end, with real sockets and requests under way."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mcproxy.config import model
from mcproxy.net.bind import BindError
from mcproxy.upstream.credentials import CredentialError
from tests.proxy import conftest
from tests.proxy.harness import NAME, OK, Client, Harness, Upstream, always, cluster, config, get, listener
from tests.support.ports import reserved_port

reactor, harness = conftest.reactor, conftest.harness

WATCH = get(b"/api/v1/pods?watch=true")
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n"
END = b"0\r\n\r\n"
LINES = EVENTS.replace(b"json", b"plain").replace(b"3\r\n{}\n", b"2\r\na\n")
PODS = b"/api/v1/namespaces/a/pods"
UPGRADE = (b"Connection: Upgrade", b"Upgrade: websocket")
EXEC = get(PODS + b"/b/exec?command=sh", *UPGRADE)
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


async def watching(harness: Harness, upstream: Upstream, **how: Any) -> Client:
    """A client with a watch that is under way."""
    client = await harness.asks(WATCH, **how)
    await harness.until(lambda: client.received.endswith(b"{}\n\r\n"), "the first event")
    return client


async def tunneling(harness: Harness, upstream: Upstream) -> Client:
    """A client with an open tunnel, which is the first connection to `upstream`."""
    upstream.reply = always(SWITCHED)
    client = await harness.asks(EXEC)
    await harness.until(lambda: b" 101 " in client.received, "the tunnel")
    return client


def drains_within(configuration: model.Config, seconds: float) -> model.Config:
    return dataclasses.replace(configuration, daemon=model.DaemonConfig(drain_timeout=seconds))


def fired(waiting: Deferred[Any]) -> list[Any]:
    results: list[Any] = []
    waiting.addBoth(results.append)
    return results


class TestReload:
    async def test_the_same_again_changes_nothing_and_keeps_sockets_connections_and_watches(
        self,
        harness: Harness,
    ) -> None:
        upstream = harness.upstream()
        upstream.reply = always(EVENTS)
        configuration = config([cluster(upstream.endpoint())])
        await harness.serve(configuration)
        port, live = harness.port(), harness.service.listeners[0]
        client = await watching(harness, upstream)
        runtime = harness.service.runtime
        await harness.serve(dataclasses.replace(configuration))
        assert harness.service.listeners[0] is live
        assert harness.port() == port
        after = harness.service.runtime
        assert after is not None
        assert runtime is not None
        assert after.clusters["east"] is runtime.clusters["east"]
        upstream.last.send(b"3\r\n[]\n\r\n")
        await harness.until(lambda: client.received.endswith(b"[]\n\r\n"))

    async def test_new_requests_on_kept_connections_get_the_new_configuration(self, harness: Harness) -> None:
        old, new = harness.upstream(), harness.upstream()
        old.reply = new.reply = always(OK)
        await harness.serve(config([cluster(old.endpoint())]))
        client = await harness.asks(get())
        await harness.until(lambda: client.received.endswith(b"{}"))
        await harness.serve(config([cluster(new.endpoint())]))
        client.send(get())
        await harness.until(lambda: client.received.count(b"{}") == 2)
        assert (old.received.count(b"GET"), new.received.count(b"GET")) == (1, 1)

    async def test_a_request_keeps_the_runtime_it_started_with(self, harness: Harness) -> None:
        old, new = harness.upstream(), harness.upstream()
        await harness.serve(config([cluster(old.endpoint())]))
        client = await harness.asks(get())
        await harness.until(lambda: old.received)
        await harness.serve(config([cluster(new.endpoint())]))
        old.last.send(OK)
        await harness.until(lambda: client.received.endswith(b"{}"))
        assert new.received == b""

    async def test_a_new_listener_opens_and_the_kept_one_keeps_its_socket(self, harness: Harness) -> None:
        upstream = harness.upstream()
        upstream.reply = always(OK)
        first = listener("one", tls=False)
        await harness.serve(config([cluster(upstream.endpoint())], listeners=[first]))
        port = harness.port()
        second = listener("two", tls=False, port=reserved_port())
        await harness.serve(config([cluster(upstream.endpoint())], listeners=[first, second]))
        assert harness.port(0) == port
        for each in (harness.port(0), harness.port(1)):
            await served(harness, each)

    async def test_a_listener_that_is_gone_stops_accepting_and_its_requests_finish(self, harness: Harness) -> None:
        upstream = harness.upstream()
        kept, gone = listener("kept", tls=False), listener("gone", tls=False, port=reserved_port())
        await harness.serve(config([cluster(upstream.endpoint())], listeners=[kept, gone]))
        gone_port = harness.port(1)
        client = await harness.asks(get(), port=gone_port, tls=False)
        await harness.until(lambda: upstream.received)
        await harness.serve(config([cluster(upstream.endpoint())], listeners=[kept]))
        with pytest.raises(Exception, match="refused"):
            await harness.client(port=gone_port, tls=False)
        upstream.last.send(OK)
        await harness.until(lambda: client.received.endswith(b"{}"))
        assert b"Connection: close\r\n" in client.received
        await harness.until(lambda: client.over)
        client.close()

    async def test_watches_of_a_removed_cluster_end_in_time_and_others_go_on(self, harness: Harness) -> None:
        gone, kept = harness.upstream(), harness.upstream()
        gone.reply = kept.reply = always(EVENTS)
        clusters = [cluster(gone.endpoint(), name="gone"), cluster(kept.endpoint(), name="kept")]
        both = model.Server(
            name="many", listeners=("tls",), default=True, backend=model.ClustersBackend(("gone", "kept"))
        )
        less = dataclasses.replace(both, backend=model.ClustersBackend(("kept",)))
        await harness.serve(config(clusters, [both]))

        async def watch(name: bytes) -> Client:
            client = await harness.asks(WATCH.replace(b"/api", b"/clusters/" + name + b"/api"))
            await harness.until(lambda: client.received.endswith(b"{}\n\r\n"))
            return client

        ending = [await watch(b"gone") for _ in range(4)]
        staying = await watch(b"kept")
        await harness.serve(drains_within(config(clusters[1:], [less]), 3.0))
        await harness.turns(3)
        assert sum(client.received.endswith(END) for client in ending) < 4, "they end one after the other"
        await harness.until(lambda: all(client.received.endswith(END) for client in ending))
        assert not staying.over
        kept.last.send(b"3\r\n[]\n\r\n")
        await harness.until(lambda: staying.received.endswith(b"[]\n\r\n"))
        await harness.until(lambda: all(connection.over for connection in gone.connections))

    async def test_watches_end_when_their_server_gets_another_cluster(self, harness: Harness) -> None:
        old, new = harness.upstream(), harness.upstream()
        old.reply = always(EVENTS)
        clusters = [cluster(old.endpoint(), name="east"), cluster(new.endpoint(), name="west")]
        before = config(clusters)
        await harness.serve(before)
        client = await watching(harness, old)
        moved = dataclasses.replace(before.servers[0], backend=model.ClusterBackend("west"))
        await harness.serve(drains_within(dataclasses.replace(before, servers=(moved,)), 0.5))
        await harness.until(lambda: client.received.endswith(END), "its clean end: the client is to list the new one")

    async def test_watches_end_when_their_server_leaves_the_listener(self, harness: Harness) -> None:
        upstream = harness.upstream()
        upstream.reply = always(EVENTS)
        listeners = [listener("one", tls=False), listener("two", tls=False, port=reserved_port())]
        server = model.Server(
            name="main", listeners=("one", "two"), server_names=("k8s.test",), backend=model.ClusterBackend("east")
        )
        await harness.serve(config([cluster(upstream.endpoint())], [server], listeners=listeners))
        leaving = await watching(harness, upstream, port=harness.port(0), tls=False)
        staying = await watching(harness, upstream, port=harness.port(1), tls=False)
        less = dataclasses.replace(server, listeners=("two",))
        other = dataclasses.replace(server, name="other", listeners=("one",))
        after = config([cluster(upstream.endpoint())], [less, other], listeners=listeners)
        await harness.serve(drains_within(after, 0.5))
        await harness.until(lambda: leaving.received.endswith(END), "its clean end")
        assert not staying.over

    async def test_a_watch_of_a_removed_server_that_begins_only_then_ends_in_time_too(self, harness: Harness) -> None:
        upstream = harness.upstream()
        upstream.reply = always(EVENTS)
        one = model.FlowControl(
            name="one",
            type=model.FlowControlType.MAX_REQUESTS_INFLIGHT,
            max_long_running=1,
            queue=model.Queue(size=1, timeout=5.0),
        )
        before = config([cluster(upstream.endpoint(), flow_controls=("one",))], flow_controls=(one,))
        await harness.serve(before)
        first = await watching(harness, upstream)
        second = await harness.asks(WATCH)  # waits for its turn
        await harness.turns()
        renamed = dataclasses.replace(before.servers[0], name="other")
        await harness.serve(drains_within(dataclasses.replace(before, servers=(renamed,)), 3.0))
        await harness.until(lambda: second.received.endswith(b"{}\n\r\n" + END), "its clean end")
        assert first.received.endswith(END)

    async def test_a_request_that_began_anew_is_none_of_what_was_removed(self, harness: Harness) -> None:
        goes, other = harness.upstream(), harness.upstream()
        queue = model.Queue(size=1, timeout=5.0)
        few = model.FlowControl(name="few", type=model.FlowControlType.MAX_REQUESTS_INFLIGHT, max=2, queue=queue)
        before = config([cluster(goes.endpoint("a"), flow_controls=("few",))], flow_controls=(few,))
        await harness.serve(before)
        stays, leaves = await harness.asks(get(method=b"DELETE")), await harness.asks(get(method=b"DELETE"))
        await harness.until(lambda: goes.received.count(b"DELETE") == 2, "the first two")
        waits = await harness.asks(get(b"/third"))
        await harness.turns()
        after = dataclasses.replace(
            before,
            clusters=(cluster(other.endpoint("b"), flow_controls=("few",)),),
            servers=(dataclasses.replace(before.servers[0], name="other"),),
        )
        await harness.serve(drains_within(after, 0.3))
        leaves.abort()
        await harness.until(lambda: other.received, "the third, on the new endpoint")
        await harness.until(lambda: stays.over, "the end of what was on the old one")
        await harness.turns()
        other.last.send(OK)
        await harness.until(lambda: waits.received, "the answer")
        assert waits.answer()[0] == 200

    @pytest.mark.parametrize(("method", "again"), [(b"GET", True), (b"DELETE", False)])
    async def test_a_read_that_a_removed_endpoint_never_answers_is_asked_of_others_in_the_end(
        self, harness: Harness, method: bytes, again: bool
    ) -> None:
        goes, other = harness.upstream(), harness.upstream()
        await harness.serve(config([cluster(goes.endpoint("a"))]))
        client = await harness.asks(get(method=method))
        await harness.until(lambda: goes.received, "the request")
        other.reply = always(OK)
        await harness.serve(drains_within(config([cluster(other.endpoint("b"))]), 0.2))
        await harness.until(lambda: client.received or client.over, "the end")
        assert client.received.startswith(b"HTTP/1.1 200 OK") == again
        await harness.until(lambda: all(connection.over for connection in goes.connections), "the old connection's end")

    async def test_a_watch_inside_an_event_is_broken_off_at_the_end_of_the_time(self, harness: Harness) -> None:
        gone, kept = harness.upstream(), harness.upstream()
        gone.reply = always(EVENTS + b"2\r\n{}\r\n")
        await harness.serve(config([cluster(gone.endpoint())]))
        client = await harness.asks(WATCH)
        await harness.until(lambda: client.received.endswith(b"2\r\n{}\r\n"))
        await harness.serve(drains_within(config([cluster(kept.endpoint(), name="other")]), 0.3))
        await harness.until(lambda: client.lost)
        assert not client.received.endswith(END)

    async def test_new_limits_hold_for_the_next_connections(self, harness: Harness) -> None:
        upstream = harness.upstream()
        upstream.reply = always(OK)
        await harness.serve(config([cluster(upstream.endpoint())]))
        tight = listener(limits=model.Limits(target_bytes=10))
        await harness.serve(config([cluster(upstream.endpoint())], listeners=[tight]))
        client = await harness.asks(get())
        await harness.until(lambda: client.received.endswith(b"}\n"))
        assert client.answer()[0] == 414


async def served(harness: Harness, port: int) -> None:
    client = await harness.asks(get(), port=port, tls=False)
    await harness.until(lambda: client.received.endswith(b"{}"))


class TestChangedBind:
    async def test_wider_address_takes_over_without_a_refused_connection(self, harness: Harness) -> None:
        upstream = harness.upstream()
        upstream.reply = always(OK)
        clusters, port = [cluster(upstream.endpoint())], reserved_port()
        narrow = listener("one", tls=False, port=port)
        wide = replace(narrow, bind=model.TCPBind("0.0.0.0", port))
        await harness.serve(config(clusters, listeners=[narrow]))
        for step in (wide, narrow, wide, narrow):
            kept = await harness.asks(get(), port=port, tls=False)
            await harness.until(lambda kept=kept: kept.received.endswith(b"{}"))  # type: ignore[misc]
            # The kernel has completed these when the old socket is closed, and nobody has accepted them.
            queued = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(20)]
            await harness.serve(config(clusters, listeners=[step]))
            assert [live.config.bind for live in harness.service.listeners] == [step.bind]
            for sock in queued:
                sock.sendall(get())
                sock.setblocking(False)
            answers = [b""] * len(queued)

            def all_answered(queued: list[socket.socket] = queued, answers: list[bytes] = answers) -> bool:
                for number, sock in enumerate(queued):
                    with contextlib.suppress(BlockingIOError):
                        answers[number] += sock.recv(4096)
                return all(answer.endswith(b"{}") for answer in answers)

            await harness.until(all_answered, "an answer to each that was queued")
            for sock in queued:
                sock.close()
            await served(harness, port)

    async def test_old_address_stays_if_the_reload_fails(self, harness: Harness) -> None:
        upstream = harness.upstream()
        upstream.reply = always(OK)
        clusters, port = [cluster(upstream.endpoint())], reserved_port()
        narrow = listener("one", tls=False, port=port)
        wide = replace(narrow, bind=model.TCPBind("0.0.0.0", port))
        await harness.serve(config(clusters, listeners=[narrow]))
        lives = harness.service.listeners
        taken = listener("taken", tls=False, port=upstream.port)
        with pytest.raises(BindError):
            await harness.serve(config(clusters, listeners=[wide, taken]))
        assert harness.service.listeners == lives
        await served(harness, port)

    async def test_mode_of_a_unix_socket_changes_in_place_and_back_if_the_reload_fails(
        self, harness: Harness, tmp_path: Path
    ) -> None:
        upstream = harness.upstream()
        upstream.reply = always(OK)
        clusters, path = [cluster(upstream.endpoint())], tmp_path / "l"
        bind = model.UnixBind(str(path))
        local = model.ListenerConfig(name="local", bind=bind)

        def mode() -> int:
            return stat.S_IMODE(path.stat().st_mode)

        await harness.serve(config(clusters, listeners=[local]))
        inode = path.stat().st_ino
        assert mode() == 0o600
        wider = replace(local, bind=replace(bind, mode=0o666))
        await harness.serve(config(clusters, listeners=[wider]))
        assert (mode(), path.stat().st_ino) == (0o666, inode)
        taken = listener("taken", tls=False, port=upstream.port)
        with pytest.raises(BindError):
            await harness.serve(config(clusters, listeners=[local, taken]))
        assert mode() == 0o666
        grouped = replace(local, bind=replace(bind, group="no-such-group"))
        with pytest.raises(BindError, match="no group"):
            await harness.serve(config(clusters, listeners=[grouped]))
        assert mode() == 0o666
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


class TestRefusedReload:
    async def test_a_socket_that_cannot_be_bound(self, harness: Harness) -> None:
        upstream = harness.upstream()
        upstream.reply = always(OK)
        first = listener("one", tls=False)
        await harness.serve(config([cluster(upstream.endpoint())], listeners=[first]))
        runtime, lives = harness.service.runtime, harness.service.listeners
        opens, taken = reserved_port(), listener("taken", tls=False, port=upstream.port)
        wrong = config(
            [cluster(upstream.endpoint(), preserve_host=True)],
            listeners=[first, listener("two", tls=False, port=opens), taken],
            logging=model.Logging(access=model.AccessLogConfig()),
        )
        with pytest.raises(BindError):
            await harness.serve(wrong)
        assert harness.service.runtime is runtime
        assert harness.service.listeners == lives
        assert [log.closed for log in harness.logs] == [1]
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", opens))  # nobody listens there any more
        await served(harness, harness.port())

    async def test_a_credential_that_can_never_be_sent(self, harness: Harness) -> None:
        upstream = harness.upstream()
        upstream.reply = always(OK)
        good = config([cluster(upstream.endpoint())], listeners=[listener(tls=False)])
        await harness.serve(good)
        runtime = harness.service.runtime
        bad = cluster(upstream.endpoint(), credentials=model.Credentials(token=model.Secret("a\nb")))
        with pytest.raises(CredentialError):
            await harness.serve(dataclasses.replace(good, clusters=(bad,)))
        assert harness.service.runtime is runtime
        await served(harness, harness.port())

    async def test_the_first_one_leaves_nothing_open(self, harness: Harness) -> None:
        upstream = harness.upstream()
        opens = reserved_port()
        listeners = [listener("a", tls=False, port=opens), listener("b", tls=False, port=upstream.port)]
        with pytest.raises(BindError):
            await harness.serve(config([cluster(upstream.endpoint())], listeners=listeners))
        assert harness.service.runtime is None
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", opens))


class TestEnd:
    async def test_shutdown_asks_kept_connections_to_close_and_still_takes_new_ones(self, harness: Harness) -> None:
        upstream = harness.upstream()
        upstream.reply = always(OK)
        await harness.serve(config([cluster(upstream.endpoint())]))
        kept = await harness.client()
        harness.service.begin_shutdown()
        for client in (kept, await harness.client()):
            client.send(get())
            await harness.until(lambda client=client: client.received.endswith(b"{}") and client.ended)  # type: ignore[misc]
            assert b"Connection: close\r\n" in client.received
            client.close()

    async def test_without_tunnels_the_drain_takes_no_time(self, harness: Harness) -> None:
        upstream = harness.upstream()
        upstream.reply = always(EVENTS)
        await harness.serve(config([cluster(upstream.endpoint())]))
        watch = await watching(harness, upstream)
        harness.service.begin_shutdown()
        assert fired(Deferred.fromCoroutine(harness.service.drain(30.0))) == [None]
        assert not watch.received.endswith(END)

    async def test_while_a_tunnel_is_open_all_else_is_served_and_new_tunnels_and_logs_are_503(
        self, harness: Harness
    ) -> None:
        upstream = harness.upstream()
        await harness.serve(config([cluster(upstream.endpoint())]))
        tunnel = await tunneling(harness, upstream)
        harness.service.begin_shutdown()
        done = fired(Deferred.fromCoroutine(harness.service.drain(30.0)))
        upstream.reply = always(OK)
        for request in (EXEC, get(PODS + b"/b/log?follow=true"), get(b"/x", *UPGRADE)):
            client = await harness.asks(request)
            await harness.until(lambda client=client: client.ended)  # type: ignore[misc]
            status, fields, body = client.answer()
            assert (status, fields["retry-after"]) == (503, "5")
            assert b"shutting down" in body
        short = await harness.asks(get())
        await harness.until(lambda: short.received.endswith(b"{}"))
        assert b"Connection: close" in short.received
        upstream.reply = always(EVENTS)
        watch = await watching(harness, upstream)
        assert not done
        tunnel.send(b"ping")
        await harness.until(lambda: upstream.connections[0].received.endswith(b"ping"))
        upstream.connections[0].send(b"bye")
        upstream.connections[0].finish()
        await harness.until(lambda: tunnel.received.endswith(b"bye") and tunnel.ended)
        assert not done
        tunnel.close()
        await harness.until(lambda: done)
        assert not watch.over
        assert harness.service.cut == {}

    async def test_a_tunnel_has_all_of_the_time_and_a_log_that_is_cut_has_no_clean_end(self, harness: Harness) -> None:
        upstream = harness.upstream()
        await harness.serve(config([cluster(upstream.endpoint())]))
        tunnel = await tunneling(harness, upstream)
        upstream.reply = always(LINES)
        log = await harness.asks(get(PODS + b"/b/log?follow=1"))
        await harness.until(lambda: log.received.endswith(b"a\n\r\n"))
        began = harness.reactor.seconds()
        done = fired(Deferred.fromCoroutine(harness.service.drain(0.5)))
        await harness.until(lambda: tunnel.over or log.over or done)
        assert harness.reactor.seconds() - began >= 0.5
        await harness.until(lambda: tunnel.over and log.lost)
        assert not log.received.endswith(END)
        assert harness.service.cut == {"tunnels": 1, "logs": 1}

    async def test_a_reload_that_removes_gives_tunnels_and_logs_all_of_the_time(self, harness: Harness) -> None:
        upstream, other = harness.upstream(), harness.upstream()
        await harness.serve(config([cluster(upstream.endpoint())]))
        tunnel = await tunneling(harness, upstream)
        upstream.reply = always(LINES)
        log = await harness.asks(get(PODS + b"/b/log?follow=1"))
        await harness.until(lambda: log.received.endswith(b"a\n\r\n"))
        began = harness.reactor.seconds()
        await harness.serve(drains_within(config([cluster(other.endpoint(), name="other")]), 0.6))
        await harness.until(lambda: tunnel.over or log.over)
        assert harness.reactor.seconds() - began >= 0.6
        await harness.until(lambda: tunnel.over and log.lost)
        assert not log.received.endswith(END)

    async def test_a_connection_that_was_accepted_last_may_still_send_its_request(self, harness: Harness) -> None:
        upstream = harness.upstream()
        upstream.reply = always(OK)
        await harness.serve(config([cluster(upstream.endpoint())]))
        client = await harness.client()
        await harness.until(lambda: harness.service.listeners[0].factory.connections, "the connection")
        harness.service.stop_accepting()
        done = fired(Deferred.fromCoroutine(harness.service.finish()))
        client.send(get())
        await harness.until(lambda: client.received.endswith(b"{}") and client.ended)
        client.close()
        await harness.until(lambda: done)

    async def test_who_retires_leaves_its_queue_to_others_and_serves_what_it_has(self, harness: Harness) -> None:
        upstream = harness.upstream()
        upstream.reply = always(OK)
        await harness.serve(config([cluster(upstream.endpoint())]))
        live = harness.service.listeners[0]
        [successor] = [sock.dup() for sock in live.socket.sockets]
        unused = await harness.client()
        await harness.until(lambda: live.factory.connections, "the connection")
        with successor, socket.create_connection(successor.getsockname(), timeout=10) as queued:
            done = fired(Deferred.fromCoroutine(harness.service.retire(30, {str(live.config.bind)})))
            assert successor.accept()[1] == queued.getsockname()
            unused.send(get())
            await harness.until(lambda: unused.received.endswith(b"{}") and unused.ended)
            unused.close()
            await harness.until(lambda: done)
            socket.create_connection(successor.getsockname(), timeout=10).close()

    async def test_drain_waits_for_requests_and_ends_watches(self, harness: Harness) -> None:
        upstream = harness.upstream()
        upstream.reply = always(EVENTS)
        await harness.serve(config([cluster(upstream.endpoint())]))
        watch = await watching(harness, upstream)
        upstream.reply = None
        idle, short = await harness.client(), await harness.asks(get())
        await harness.until(lambda: b"pods/b" in upstream.received)
        answering = upstream.last
        harness.service.stop_accepting()
        done = fired(Deferred.fromCoroutine(harness.service.finish()))
        await harness.until(lambda: idle.ended and watch.received.endswith(END))
        assert not done
        answering.send(OK)
        await harness.until(lambda: short.received.endswith(b"{}"))
        for client in (idle, watch, short):
            await harness.until(lambda client=client: client.over)  # type: ignore[misc]
            client.close()
        await harness.until(lambda: done)
        assert harness.service.running == 0

    async def test_the_last_answer_goes_out_whole_before_the_end(self, harness: Harness) -> None:
        upstream = harness.upstream()
        await harness.serve(config([cluster(upstream.endpoint())]))
        client = await harness.asks(get())
        await harness.until(lambda: upstream.received)
        transport: Any = client.transport
        transport.pauseProducing()
        transport.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        for stream in harness.service.listeners[0].socket:
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        upstream.last.send(b"HTTP/1.1 200 OK\r\nContent-Length: 80000\r\n\r\n" + bytes(80_000))
        await harness.until(lambda: harness.service.running == 0, "the end of the request, its answer being queued")
        harness.service.stop_accepting()
        done = fired(Deferred.fromCoroutine(harness.service.finish()))
        await harness.turns(20)
        transport.resumeProducing()
        await harness.until(lambda: len(client.received) > 80_000 and client.ended)
        client.close()
        await harness.until(lambda: done)

    async def test_what_does_not_end_in_time_is_broken_off(self, harness: Harness) -> None:
        upstream = harness.upstream()
        await harness.serve(config([cluster(upstream.endpoint())]))
        client = await harness.asks(get())
        await harness.until(lambda: upstream.received)
        harness.service.stop_accepting()
        await harness.service._in_flight.finish(0.1, 0.2)
        await harness.until(lambda: client.lost and upstream.last.over)
        assert client.received == b""
        assert harness.service.cut == {"requests": 1}

    async def test_abort_ends_everything_at_once_and_may_be_repeated(self, harness: Harness) -> None:
        upstream = harness.upstream()
        upstream.reply = always(EVENTS)
        await harness.serve(config([cluster(upstream.endpoint())]))
        client = await watching(harness, upstream)
        harness.service.abort()
        harness.service.abort()
        await harness.until(lambda: client.lost and upstream.last.over)
        assert harness.service.listeners == ()

    async def test_running_exec_plugins_end_with_it(self, harness: Harness) -> None:
        upstream = harness.upstream()
        plugin = model.ExecPlugin(command="/bin/sleep", args=("60",))
        await harness.serve(config([cluster(upstream.endpoint(), credentials=model.Credentials(exec=plugin))]))
        client = await harness.asks(get())
        processes = harness.service._resources.shared.plugins._running
        await harness.until(lambda: processes, "the plugin")
        harness.service.abort()
        await harness.until(lambda: client.lost and not processes, "the plugin's end")


class TestServers:
    async def test_sni_decides_and_another_servers_host_is_misdirected(self, harness: Harness) -> None:
        one, two = harness.upstream(), harness.upstream()
        one.reply = two.reply = always(OK)
        servers = [
            model.Server(name="one", listeners=("tls",), server_names=(NAME,), backend=model.ClusterBackend("one")),
            model.Server(
                name="two", listeners=("tls",), server_names=("*.wild.test",), backend=model.ClusterBackend("two")
            ),
        ]
        clusters = [cluster(one.endpoint(), name="one"), cluster(two.endpoint(), name="two")]
        await harness.serve(config(clusters, servers))
        for host, name, code, reached in (
            (b"k8s.test", NAME, 200, (1, 0)),
            (b"127.0.0.1", NAME, 200, (2, 0)),
            (b"a.wild.test", "a.wild.test", 200, (2, 1)),
            (b"k8s.test", "a.wild.test", 421, (2, 1)),
            (b"nobody.test", "other.test", 404, (2, 1)),
        ):
            client = await harness.asks(get().replace(b"k8s.test", host), server_name=name)
            await harness.until(lambda client=client: client.received.endswith((b"{}", b"}\n")))  # type: ignore[misc]
            assert client.answer()[0] == code
            assert (one.received.count(b"GET"), two.received.count(b"GET")) == reached
