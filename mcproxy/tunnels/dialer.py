"""The connections of a listener that dials hubs; takes the place of `net.listen.Listener`."""

from __future__ import annotations

import dataclasses
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from mcproxy.config import model
from mcproxy.log_once import LogOnce
from mcproxy.tunnels.hub_link import HubLink

if TYPE_CHECKING:
    from mcproxy.http.deadlines import Deadlines
    from mcproxy.http.server_factory import ServerFactory
    from mcproxy.net.listen import Listener
    from mcproxy.net.pending_connection import ListenerSettings
    from mcproxy.net.socket_stream import SocketStream
    from mcproxy.upstream.upstream_context import UpstreamContext

log = Logger(__name__)


class Dialer:
    """A link to each hub of one listener, and all their connections."""

    def __init__(
        self,
        dial: model.Dial,
        *,
        instance: str,
        context: UpstreamContext,
        deadlines: Deadlines,
        factory: ServerFactory,
    ) -> None:
        """`instance` names the daemon (`protocol.INSTANCE`). `factory` makes the engines of data connections."""
        self._dial = dial
        self._instance = instance
        self._context = context
        self._deadlines = deadlines
        self._factory = factory
        self._links: dict[str, HubLink] = {}
        self._streams: set[SocketStream] = set()
        self._once = LogOnce(float("inf"))
        self.accepting = False
        self.counts: Counter[str] = Counter()
        """As of `Listener`: connections `accepted`, each with a handshake that was `ok`."""

    @property
    def links(self) -> Sequence[HubLink]:
        """The links in the order of the configuration."""
        return [self._links[url] for url in self._dial.urls if url in self._links]

    @property
    def tunnel(self) -> str:
        """The name of the tunnel."""
        return self._dial.tunnel

    @property
    def connected(self) -> bool:
        """Whether a hub is connected, by a link in force or the one that it replaces."""
        return any(link.is_up or (link.replaced is not None and link.replaced.is_up) for link in self.links)

    def configure(self, dial: model.Dial) -> None:
        """Follow a configuration: links to other hubs, and new connections with other settings.

        A link with other settings is up before the former one ends.
        """
        before, self._dial = self._dial, dial
        if before != dial and self.accepting:
            self._set_links(renew=_without_urls(before) != _without_urls(dial))

    def _set_links(self, *, renew: bool) -> None:
        for url in [url for url in self._links if url not in self._dial.urls]:
            _stop(self._links.pop(url))
        for url in self._dial.urls:
            former = self._links.get(url)
            if former is not None and not renew:
                continue
            link = self._links[url] = HubLink(
                url,
                self._dial,
                instance=self._instance,
                context=self._context,
                deadlines=self._deadlines,
                factory=self._factory,
                opened=self._opened,
                changed=self._changed,
            )
            if former is not None and not former.is_up:  # the link that it was to replace is replaced by this one
                unused, former = former, former.replaced
                unused.replaced = None
                unused.stop()
            link.replaced = former
            link.start()

    def _opened(self, stream: SocketStream) -> None:
        self.counts["accepted"] += 1
        self.counts["ok"] += 1
        self._streams.add(stream)
        stream.call_when_closed(lambda: self._streams.discard(stream))

    def _changed(self, link: HubLink) -> None:
        if link.is_up and link.replaced is not None:
            former, link.replaced = link.replaced, None
            former.stop()
        links = self.links
        if not all(each.tried for each in links):
            return  # at the start one hub is connected before the others
        missing = [each for each in links if not each.is_up]
        state = "partial" if missing and len(missing) < len(links) else "whole" if not missing else "none"
        if self._once.allows("links", state=(state, *(each.url for each in missing))) and state == "partial":
            log.warn(
                "some hubs are not connected: their clients do not reach this site",
                event="tunnel_partial",
                listener=self._factory.name,
                tunnel=self._dial.tunnel,
                connected=len(links) - len(missing),
                urls=len(links),
                cause="; ".join(f"{each.url}: {each.cause}" for each in missing),
                todo="see these hubs, and the network to them; they are dialled again by themselves",
            )

    # -- as of `net.listen.Listener` ------------------------------------------------------------------------------

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """No sockets: this listener accepts nothing."""
        return ()

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._streams)

    @property
    def handshakes(self) -> int:
        """None: a connection is counted when the hub has accepted it."""
        return 0

    def __iter__(self) -> Iterator[SocketStream]:
        return iter(tuple(self._streams))

    def open(self, *, replacing: Sequence[Listener | Dialer] = ()) -> None:
        """Do nothing: there is no address to bind."""

    def start_accepting(self) -> None:
        """Dial all hubs."""
        self.accepting = True
        self._set_links(renew=False)

    def stop_accepting(self) -> None:
        """Dial no more. Control connections end after their requests; data connections stay."""
        self.accepting = False
        links, self._links = self._links, {}
        for link in links.values():
            _stop(link)

    def release(self) -> None:
        """Stop, as `stop_accepting`: another process dials now."""
        self.stop_accepting()

    def update(self, settings: ListenerSettings) -> None:
        """Do nothing: `configure` has the settings."""

    def accept_queued(self) -> None:
        """Do nothing: there is no queue."""

    def drop_pending(self) -> None:
        """Do nothing: connections have a protocol from the start."""

    def set_permissions(self, bind: Any) -> None:
        """Do nothing: there is no file."""

    def restore(self) -> None:
        """Do nothing: no other process changes anything."""


def _stop(link: HubLink) -> None:
    """Stop a link, and the one that it has not replaced yet."""
    former, link.replaced = link.replaced, None
    for each in (former, link):
        if each is not None:
            each.stop()


def _without_urls(dial: model.Dial) -> model.Dial:
    return dataclasses.replace(dial, urls=())
