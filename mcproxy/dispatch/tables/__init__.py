"""Exact limits over the processes of a daemon, in shared memory; a single process uses private memory.

The process that owns the memory uses `shared_memory.SharedMemory`; processes that count use `limit_tables.LimitTables`.
"""
