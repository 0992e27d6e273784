"""Exact limits over the processes of a daemon, in memory that all of them map, and the part of that memory's owner.

`SharedMemory` is for the process that makes the memory, `SharedTables` for those that count in it.
"""

from mcproxy.dispatch.shared_memory.limit_shares import Demand, LimitId, Share, key_hash
from mcproxy.dispatch.shared_memory.shared_memory import SharedMemory
from mcproxy.dispatch.shared_memory.shared_tables import SharedTables

__all__ = ["Demand", "LimitId", "Share", "SharedMemory", "SharedTables", "key_hash"]
