"""The supervisor's part in the health of endpoints: it passes the leader's results on, and keeps the newest ones.

    leader      health_result   -> supervisor -> health_result  all others
    any other   health_soon     -> supervisor -> health_soon    the leader
    any         health_out      -> supervisor -> health_out     all others
    supervisor  health_states   -> a process that has started, before its first configuration

It judges nothing. A result of a process that is the leader no more (it was stopped, and goes on) is dropped.
"""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime

from mcproxy.config import model
from mcproxy.daemon.processes.channel import Message
from mcproxy.daemon.processes.children import Child, Children
from mcproxy.daemon.processes.health_memory import HealthMemory
from mcproxy.upstream.health_exchange import CheckResult

_STATES_A_MESSAGE = 1000  # of some 500 bytes each


class HealthRelay:
    """Between all children."""

    def __init__(self, children: Children, clock: IReactorTime) -> None:
        self._children = children
        self._memory = HealthMemory(clock)
        children.on("health_result", self._result)
        children.on("health_soon", self._soon)
        children.on("health_out", self._out)
        children.on_started(self._started)

    def configured(self, config: model.Config) -> None:
        """Forget the endpoints that a configuration which is in force no longer has."""
        self._memory.keep(config)

    def _result(self, child: Child, message: Message) -> None:
        if child is self._children.leader:
            self._memory.put(CheckResult.from_fields(message.fields))
            self._children.tell_all("health_result", but=child, **message.fields)

    def _soon(self, child: Child, message: Message) -> None:
        leader = self._children.leader
        if leader is not None and leader is not child:
            leader.channel.tell("health_soon", **message.fields)

    def _out(self, child: Child, message: Message) -> None:
        self._children.tell_all("health_out", but=child, **message.fields)

    def _started(self, child: Child) -> None:
        states = [{"age": age, **result.to_fields()} for age, result in self._memory.all()]
        for start in range(0, len(states), _STATES_A_MESSAGE):
            child.channel.tell("health_states", states=states[start : start + _STATES_A_MESSAGE])
