"""Limits over replicas: each has a lease on a part of every shared limit, from a Redis that they have in common.

    agent.py    asks for leases in the background and applies them to the table that requests count in
    leases.py   one limit at one replica: what it wants, what it holds, what holds without Redis (pure)
    demand.py   what a key wants, from what was admitted and refused (pure)
    shares.py   how a limit is divided (pure)
    script.py   the call of lease.lua, which alone decides what is granted
    engine_thread.py   the thread that calls Redis
    client.py   Redis itself; called in that thread

No request waits for any of it. docs/architecture.md, "Limits over replicas", says what holds when.
"""
