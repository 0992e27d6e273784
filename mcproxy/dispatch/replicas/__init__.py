"""Limits over replicas: each replica leases a part of every shared limit from a Redis that all replicas use.

    agent.py          requests leases in the background, and applies them to the tables in which requests count
    leases.py         one limit at one replica: its wants and leases, its parts without Redis, and their division (pure)
    script.py         the call of lease.lua, the only place that grants parts
    engine_thread.py  the thread that calls Redis, with the client in redis_client.py

No request waits for this exchange. docs/architecture.md, "Limits over replicas", describes the guarantees.
"""
