"""Rolling updates of an ingress's pods in two clusters, under load: no request fails, nor does a reload amid them.

What Kubernetes does with each pod of a rolling update: a new one is ready; an old one is terminating, which serves on
for a while (its preStop hook), then takes no more connections, answers what it has, and is gone.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.e2e.processes import wait_until
from tests.e2e.test_ingress_endpoints import SLICES, Site, service

PODS = 100
"""Of each cluster; each of them is replaced."""
AT_A_TIME = 8
"""Pods of a cluster that are being replaced: the Deployment's maxSurge, with a maxUnavailable of 0."""
GRACE = 1.0
"""Seconds for which a terminating pod serves on, and without a request before it ends."""
BODY = b"some words of a body, and more of them: " * 500
OTHER = """\
          - path: /other
            pathType: Exact
            backend: {namespace: default, service: other, port: 80, clusters: [east]}
"""


class Loop:
    """The event loop of all pods, in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


class RollingPod:
    """A server of HTTP/1.1 that answers each request with the length of its body, after some milliseconds."""

    def __init__(self, name: str, random: Random) -> None:
        self.name = name
        self.answered = 0
        self._random = random
        self._active = 0
        self._asked = time.monotonic()  # last
        self._connections: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def end(self) -> None:
        """Serve on for GRACE, then end as a program does on SIGTERM."""
        told = time.monotonic()
        while time.monotonic() < max(told, self._asked) + GRACE:
            await asyncio.sleep(0.05)
        self._server.close()
        while self._active:
            await asyncio.sleep(0.01)
        self.stop()

    def stop(self) -> None:
        self._server.close()
        for connection in list(self._connections):
            connection.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self._active, self._asked = self._active + 1, time.monotonic()
                try:
                    await self._answer(head, reader, writer)
                finally:
                    self._active -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = head.lower().split(b"\r\n")
        length = sum(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:"))
        body = await reader.readexactly(length)
        await asyncio.sleep(self._random.random() * 0.02)
        answer = b"%b %d %d" % (self.name.encode(), len(body), body == BODY)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer))
        await writer.drain()
        self.answered += 1


class Load:
    """Clients in threads, each of which asks again and again; `failures` says what went wrong."""

    def __init__(self, port: int) -> None:
        self.failures: list[str] = []
        self.answers: Counter[str] = Counter()  # by kind of client
        self._port = port
        self._over = threading.Event()
        kinds = itertools.product(["keeps", "new"], ["GET", "POST"])
        self._threads = [threading.Thread(target=self._run, args=kind, daemon=True) for kind in kinds]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self, connections: str, method: str) -> None:
        client = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        expected = b" %d 1" % len(BODY) if method == "POST" else b" 0 0"
        while not self._over.is_set():
            try:
                client.request(method, "/work", BODY if method == "POST" else None)
                answer = client.getresponse()
                body = answer.read()
                if answer.status != 200 or not body.endswith(expected):
                    self.failures.append(f"{connections} {method}: {answer.status} {body[:200]!r}")
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(f"{connections} {method}: {error!r}")
                client.close()
            if connections == "new":
                client.close()
            self.answers[f"{connections} {method}"] += 1
        client.close()


class Rollout:
    """The pods of one cluster: each has a slice of its own, for they share an address."""

    def __init__(self, site: Site, cluster: str, loop: Loop, seed: int) -> None:
        self.site, self.cluster, self.loop = site, cluster, loop
        self.replaced = 0
        self.pods: list[RollingPod] = []
        self._random = Random(seed)
        self._number = itertools.count()

    def begin(self) -> None:
        with ThreadPoolExecutor(AT_A_TIME) as threads:
            self.pods = list(threads.map(lambda _: self._new(), range(PODS)))
        self.site.write(self.cluster, f"{SLICES}/web-1", {}, method="DELETE")

    def run(self) -> None:
        """Replace each pod."""
        with ThreadPoolExecutor(AT_A_TIME) as threads:
            self.pods = list(threads.map(self._replace, self.pods))

    def _new(self) -> RollingPod:
        pod = RollingPod(f"{self.cluster}-{next(self._number)}", self._random)
        self.loop.run(pod.start())
        self.site.write(self.cluster, SLICES, self._slice(pod, {"ready": True}))
        return pod

    def _replace(self, old: RollingPod) -> RollingPod:
        new = self._new()
        path = f"{SLICES}/web-{old.name}"
        ending = {"ready": False, "serving": True, "terminating": True}
        self.site.write(self.cluster, path, self._slice(old, ending), method="PUT")
        self.loop.run(old.end())
        self.site.write(self.cluster, path, {}, method="DELETE")
        self.replaced += 1
        return new

    @staticmethod
    def _slice(pod: RollingPod, conditions: dict[str, bool]) -> dict[str, Any]:
        return {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": f"web-{pod.name}", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["127.0.0.1"], "conditions": conditions}],
            "ports": [{"name": "http", "port": pod.port}],
        }


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    try:
        site.start()
        yield site
    finally:
        site.stop()


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.stop()


@pytest.mark.slow
def test_no_request_fails_while_two_times_100_pods_are_replaced_and_the_file_is_reloaded(
    site: Site, loop: Loop
) -> None:
    rollouts = [Rollout(site, name, loop, seed) for seed, name in enumerate(("east", "west"))]
    for rollout in rollouts:
        rollout.begin()
    first = [pod for rollout in rollouts for pod in rollout.pods]
    wait_until("all are known", lambda: [each["ready"] for each in site.status()["serviceEndpoints"]] == [PODS] * 2)
    site.write("east", "/api/v1/namespaces/default/services", {**service(), "metadata": {"name": "other"}})
    with Load(site.port) as load, ThreadPoolExecutor(2) as threads:
        wait_until("all kinds of clients", lambda: len(load.answers) == 4)
        began = time.monotonic()
        running = [threads.submit(rollout.run) for rollout in rollouts]
        wait_until("the middle", lambda: sum(rollout.replaced for rollout in rollouts) >= PODS)
        site.daemon.file.write_text(site.config() + OTHER)
        reload = site.daemon.reload()
        assert reload.returncode == 0, reload
        for each in running:
            each.result()
        seconds = time.monotonic() - began
        last = [pod for rollout in rollouts for pod in rollout.pods]
        answered = load.answers.total()
        wait_until("further requests", lambda: load.answers.total() > answered + 100)
    print(f"{2 * PODS} pods in {seconds:.0f} s, {load.answers}")
    assert load.failures == []
    assert not set(first) & set(last)
    assert all(any(pod.answered for pod in pods) for pods in (first, last))
    assert "Traceback" not in site.daemon.log
    for pod in last:
        loop.run(_stopped(pod))


async def _stopped(pod: RollingPod) -> None:
    pod.stop()
