"""What strategies do for informers: a watch that goes on from a list goes to where the list was answered (`served`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from mcproxy.upstream.endpoint import Endpoint
from mcproxy.upstream.served import Served

if TYPE_CHECKING:
    from mcproxy.kube.requestinfo import RequestInfo


class InformerAware:
    """A strategy that has turns, of which a watch that goes where its list was answered takes none."""

    __slots__ = ("_served", "endpoints")

    def __init__(self, endpoints: Sequence[Endpoint], previous: InformerAware | None) -> None:
        self.endpoints = tuple(endpoints)
        self._served: Served = Served(self.endpoints, None if previous is None else previous._served)

    def pick(
        self,
        exclude: Collection[Endpoint] = (),
        user: str = "",
        info: RequestInfo | None = None,
        target: bytes = b"",
    ) -> Endpoint | None:
        """As `balance.Balance.pick`."""
        if info is None or (info.verb != "list" and info.verb != "watch"):
            return self._turn(exclude)
        known = self._served.preferred(user, info, target)
        if known is not None and known.ready and known not in exclude and self._leaves_room_for(known, exclude):
            return known
        endpoint = self._turn(exclude)
        if endpoint is not None:
            self._served.note(user, info, endpoint)
        return endpoint

    def _turn(self, exclude: Collection[Endpoint]) -> Endpoint | None:
        """Return whose turn it is, if anybody can be had."""
        raise NotImplementedError

    def _leaves_room_for(self, endpoint: Endpoint, exclude: Collection[Endpoint]) -> bool:
        """Whether the strategy lets a ready endpoint be preferred."""
        raise NotImplementedError
