"""Follows every resource of many clusters with reflectors: ``follow.py PORT AUTHORITY CLUSTERS RESOURCES``.

Prints `ready` when every store has its initial state, and goes on; `0 RESOURCES` leaves the reflectors out. The first
watches end at random times, as if the process had run for long; later ones last as long as they always do. Health
checks are as in a daemon's configuration without `healthCheck`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from twisted.internet.task import LoopingCall

from mcproxy.aggregate.reflector import collection
from mcproxy.aggregate.reflector.reflectors import Reflectors, StoreOptions
from mcproxy.config import model
from mcproxy.daemon.runtime import make_upstream_context
from mcproxy.http.deadlines import Deadlines
from mcproxy.net import reactor as lean
from mcproxy.upstream.cluster import Cluster


def main(port: int, authority: Path, clusters: int, resources: int) -> None:
    reactor = lean.install()
    shared = make_upstream_context(reactor, Deadlines(reactor), lambda endpoint: None)
    ca = model.PEMFile(str(authority), authority.read_bytes())
    live = {name: Cluster(_config(name, port, ca), shared) for name in (f"c{number:03d}" for number in range(clusters))}
    reflectors = Reflectors(shared)
    stores: list[Any] = []
    usual = collection.MIN_WATCH
    collection.MIN_WATCH = 5

    def acquire(name: str) -> None:
        for gvr, resource in reflectors.member(name).discovery.resources.items():
            if gvr.group and len(stores) < clusters * resources:
                stores.append(reflectors.acquire(name, resource, "", StoreOptions()))

    def begin() -> None:
        for cluster in live.values():
            cluster.start()
        reflectors.update(live)
        for name in live:
            discovery = reflectors.member(name).discovery
            if discovery.known:
                acquire(name)
            else:
                unsubscribe = discovery.subscribe(lambda name=name: known(name))
                waiting[name] = unsubscribe

    def known(name: str) -> None:
        if name in waiting and reflectors.member(name).discovery.known:
            waiting.pop(name)()
            acquire(name)

    def look() -> None:
        if len(stores) == clusters * resources and all(store.synced for store in stores) and not waiting:
            collection.MIN_WATCH = usual
            looking.stop()
            print("ready", flush=True)

    waiting: dict[str, Any] = {}
    looking = LoopingCall(look)
    reactor.callWhenRunning(begin)
    reactor.callWhenRunning(looking.start, 0.2)
    reactor.run()


def _config(name: str, port: int, ca: model.PEMFile) -> model.ClusterConfig:
    endpoint = model.EndpointConfig(name="a", scheme="https", host="127.0.0.1", port=port, path=f"/{name}")
    return model.ClusterConfig(
        name=name,
        endpoints=(endpoint,),
        tls=model.ClusterTLS(ca=ca, server_name="localhost"),
        credentials=model.Credentials(token=model.Secret("token")),
        identity=model.UpstreamIdentity.PROXY,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
