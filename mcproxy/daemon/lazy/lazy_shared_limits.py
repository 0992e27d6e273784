"""Limits over replicas, in the process that owns the memory in which limits are counted: the supervisor, or the one
process of a daemon.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from mcproxy.config import model
from mcproxy.config.model import FlowControlType

if TYPE_CHECKING:
    from mcproxy.dispatch.replicas.agent import LeaseAgent, Table
    from mcproxy.dispatch.replicas.engine_thread import EngineThread
    from mcproxy.dispatch.replicas.leases import Limit


class SharedLimits:
    """The limits shared with other replicas; created when a configuration first has one."""

    def __init__(self, reactor: Any, table: Callable[[], Table]) -> None:
        """`table` returns the memory; it is called when there is something to share."""
        self._reactor = reactor
        self._table = table
        self._agent: LeaseAgent | None = None

    @property
    def figures(self) -> dict[str, Any] | None:
        """The shared state as the command `status` shows it; None where nothing is shared."""
        if self._agent is None or not self._agent.limits:
            return None
        return {"replicas": self._agent.replicas, "away": self._agent.away, "limits": self._agent.limits}

    def configured(self, config: model.Config) -> None:
        """A configuration is in force."""
        state = config.daemon.shared_state
        if self._agent is None:
            if state is None or not any(control.shared for control in config.flow_controls):
                return
            self._agent = self._make_agent()
        self._agent.configure(state.redis if state is not None else None, _limits(config))

    async def stop(self) -> None:
        """Leave: the other replicas have this one's parts at once. Takes half a second at most."""
        agent, self._agent = self._agent, None
        if agent is not None:
            await agent.stop()

    def abort(self) -> None:
        """End at once: the others have this one's parts when its leases have expired."""
        agent, self._agent = self._agent, None
        if agent is not None:
            agent.abort()

    def _make_agent(self) -> LeaseAgent:
        from mcproxy.dispatch.replicas.agent import LeaseAgent

        return LeaseAgent(self._reactor, self._table(), _member(), connect=self._connect)

    def _connect(self, redis: model.Redis) -> EngineThread:
        from mcproxy.dispatch.replicas.engine_thread import EngineThread

        return EngineThread(self._reactor, redis, _make_engine)


def _make_engine(redis: model.Redis) -> Any:
    from mcproxy.dispatch.replicas.redis_client import RedisEngine

    return RedisEngine(redis)


def _member() -> str:
    """Return a name of this replica that no other has had, and that an operator can place."""
    return f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"


def _limits(config: model.Config) -> Iterator[Limit]:
    from mcproxy.dispatch.replicas.leases import Limit
    from mcproxy.dispatch.shared_memory import LimitId

    for control in config.flow_controls:
        if not control.shared:
            continue
        if control.type is FlowControlType.TOKEN_BUCKET:
            yield Limit(LimitId(control.name, "bucket", control.per), control.qps, control.burst)
        if control.max:  # 0 refuses all, which needs no engine
            yield Limit(LimitId(control.name, "short", control.per), control.max)
        if control.max_long_running:
            yield Limit(LimitId(control.name, "long", control.per), control.max_long_running)
