"""Limits over replicas: each replica leases a part of every shared limit from a Redis that all replicas use.

    agent.py          asks for leases in the background and applies them to the table that requests count in leases.py
    one limit at one replica: its wants and leases, its parts without Redis, and how a limit is divided (pure) script.py
    the call of lease.lua, the only place that grants parts engine_thread.py  the thread that calls Redis
    redis_client.py   the client of Redis; called in that thread

No request waits for any of it. docs/architecture.md, "Limits over replicas", has the guarantees.
"""
