"""A whole proxy with an Ingress listener in the test's process; its services' endpoints are what the test says."""

from __future__ import annotations

from typing import Any

from mcproxy.config import model
from mcproxy.services.endpoint_table import BackendKey, EndpointState, EndpointTable, PodEndpoint, PortEndpoints
from tests.proxy.harness import Client, Harness, Upstream, UpstreamEnd, certificate, listener

HOST = "web.example.com"
LISTENER = "web"


def ingress_config(
    *ingresses: model.Ingress,
    listeners: tuple[model.ListenerConfig, ...] = (),
    clusters: tuple[str, ...] = ("east", "west"),
    certificates: tuple[model.Certificate, ...] = (),
    **fields: Any,
) -> model.Config:
    """Return a configuration; without `listeners` there is a plain one."""
    if not listeners:
        listeners = (listener(LISTENER, tls=False, serves=model.Serves.INGRESS),)
    return model.Config(
        listeners=listeners,
        certificates=certificates or (certificate(HOST, "*.wild.example.com"),),
        clusters=tuple(model.ClusterConfig(name=name, endpoints=()) for name in clusters),
        ingresses=ingresses,
        logging=model.Logging(access=model.AccessLogConfig(file="/nowhere", format="json")),
        **fields,
    )


def tls_listener(
    name: str = LISTENER, *, port: int = 0, hosts: tuple[tuple[str, str], ...] = (), **fields: Any
) -> model.ListenerConfig:
    host = "127.0.0.1" if name == LISTENER else "localhost"  # two listeners whose ports the system chooses
    return model.ListenerConfig(
        name=name,
        bind=model.TCPBind(host, port),
        serves=model.Serves.INGRESS,
        tls=model.ListenerTLS(certificates=(HOST,), hosts=hosts),
        **fields,
    )


def says(name: str) -> Any:
    """A `reply` of a pod: its name, and the head of the request."""

    def reply(end: UpstreamEnd) -> None:
        while b"\r\n\r\n" in (rest := end.received[end.answered :]):
            head = rest.partition(b"\r\n\r\n")[0]
            end.answered += len(head) + 4
            body = name.encode() + b"\n" + head
            end.send(
                b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nServer: %b\r\n\r\n%b" % (len(body), name.encode(), body)
            )

    return reply


class FixedServices:
    """Services (`process_parts.ServicesOfProcess`) whose endpoints only the test changes."""

    def __init__(self) -> None:
        self.endpoints = EndpointTable()

    def activate(self, config: model.Config, clusters: Any) -> None:
        pass

    def figures(self) -> dict[str, Any]:
        return {}

    def checks(self) -> list[Any]:
        return []

    def stop(self) -> None:
        pass


class Whole(Harness):
    """The proxy, its pods and its clients."""

    def parts(self) -> dict[str, Any]:
        self.services = FixedServices()
        return {"make_services": lambda shared, caches: self.services}

    def pod(self, name: str = "pod") -> Upstream:
        """Start a pod that says its name."""
        pod = self.upstream()
        pod.reply = says(name)
        return pod

    def endpoints(
        self,
        service: str,
        *pods: Upstream | int,
        cluster: str = "east",
        port: int | str = 8080,
        terminating: tuple[Upstream, ...] = (),
        **more: Any,
    ) -> None:
        """Say which endpoints a service has."""
        found = [(each if isinstance(each, int) else each.port, EndpointState.READY) for each in pods]
        found += [(each.port, EndpointState.TERMINATING) for each in terminating]
        self.services.endpoints.set(
            BackendKey(cluster, "demo", service, port),
            PortEndpoints(
                tuple(PodEndpoint("127.0.0.1", number, None, state) for number, state in sorted(found)),
                known=True,
                **more,
            ),
        )

    async def get(
        self,
        target: str = "/",
        *fields: str,
        host: str = HOST,
        method: str = "GET",
        tls: bool = False,
        index: int = 0,
        **how: Any,
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request over a connection of its own, and return the answer."""
        lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *fields, "Connection: close", "", ""]
        client = await self.asks("\r\n".join(lines).encode(), tls=tls, port=self.port(index), **how)
        return await self.answer(client)

    async def answer(self, client: Client) -> tuple[int, dict[str, str], bytes]:
        """Return the answer when the connection is over."""
        await self.until(lambda: client.over, "the end of the response")
        client.close()
        return client.answer()

    async def who(self, target: str = "/", *fields: str, **how: Any) -> str:
        """Return the name of the pod that answered, or the status."""
        status, answered, _ = await self.get(target, *fields, **how)
        return answered["server"] if status == 200 else str(status)
