"""Exact limits over the processes of a daemon, in memory that all of them map; in one process, in private memory.

`shared_memory.SharedMemory` is for the process that owns the memory, `limit_tables.LimitTables` for those that count.
"""
