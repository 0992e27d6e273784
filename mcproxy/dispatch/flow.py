"""The flow controls of one configuration, and what a reload does to them.

A control whose type and `per` stay is the same object before and after, with its buckets, its requests under way and
whoever waits. `build` changes nothing of it, since the new configuration may yet fail to come into force. When it does
come, `activate` sets the new figures: they hold for the next request, of whichever Runtime, and for those who wait.

A control that is gone, or has become another kind, goes on by its old figures for the requests that began with it:
those under way end when they end, and those who wait are let through or refused within the queue's timeout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from twisted.internet.interfaces import IReactorTime

from mcproxy.config import model
from mcproxy.config.model import FlowControlType
from mcproxy.dispatch.admission import Admission, admission
from mcproxy.dispatch.control import Control, make


class FlowControls:
    """All flow controls, by name."""

    __slots__ = ("_config", "controls")

    def __init__(self, config: Mapping[str, model.FlowControl], controls: Mapping[str, Control]) -> None:
        self._config = config
        self.controls = MappingProxyType(controls)  #: by name, for counts; those that limit nothing are not in it

    @classmethod
    def build(
        cls, config: Sequence[model.FlowControl], clock: IReactorTime, previous: FlowControls | None = None
    ) -> FlowControls:
        """Make the flow controls of `config`, keeping those of `previous` that are the same or have other figures."""
        live: dict[str, Control] = {}
        for item in config:
            old = None if previous is None else previous.controls.get(item.name)
            if old is not None and (old.config.type, old.config.per) == (item.type, item.per):
                live[item.name] = old
                continue
            new = make(item, clock)
            if new is not None:
                live[item.name] = new
        return cls({item.name: item for item in config}, live)

    def activate(self) -> None:
        """Give the controls that were kept their new figures. Call it when the Runtime begins to serve."""
        for name, control in self.controls.items():
            if control.config != self._config[name]:
                control.change(self._config[name])

    def admission(self, names: Sequence[str], cluster_name: str) -> Admission:
        """Return what admits requests to a cluster: the policy's flow control, then the cluster's own.

        A name that comes twice counts once. Raises KeyError for one that is not in the configuration.
        """
        limiting = [name for name in dict.fromkeys(names) if self._config[name].type is not FlowControlType.EXEMPT]
        return admission([self.controls[name] for name in limiting], cluster_name)
