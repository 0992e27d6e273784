"""Limits over the processes of a daemon, exact, in memory that all of them map; and what the owner of that memory does.

`SharedMemory` is for the process that makes the memory, `SharedTables` for those that count in it.
"""

from mcproxy.dispatch.shared_memory.shared_memory import SharedMemory
from mcproxy.dispatch.shared_memory.shares import Demand, LimitId, Share, key_hash
from mcproxy.dispatch.shared_memory.tables import SharedTables

__all__ = ["Demand", "LimitId", "Share", "SharedMemory", "SharedTables", "key_hash"]
