"""Requests to aggregates that one process receives and another one answers.

A *worker* has the client's connection: it authenticates, finds the policies, admits and authorizes. The *keeper* has
the caches of all members and runs the router of the aggregate (`mcproxy.aggregate.live_aggregate`). Between each worker
and the keeper is one connection (`link`), on which the calls of `http.exchange.Exchange` go as frames
(`keeper_frames`, `wire`), so heads, framing and limits of the client's connection are the worker's own, and the bytes
are those of one process.
What is forwarded unchanged (exec, logs, most of what is not cached) does not go through the keeper: it only says to
which member, and the worker forwards it.

    client ── worker: pipeline ── relay ──frames── keeper: server ── AggregatedRequest ── handler ── caches

The supervisor makes the connections, a socket pair each, and passes the ends: nobody else can reach the keeper, and
what a client or a member sends is never read as a frame, since a frame has its length before it.
"""
