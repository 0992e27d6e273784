"""Passes requests to aggregates from the process that receives them to the process that answers them.

A *worker* has the client's connection: it authenticates, finds the policies, admits and authorizes. The *keeper* has
the caches of all members and runs the router of the aggregate (`mcproxy.aggregate.live_aggregate`). One connection
(`link`) between each worker and the keeper carries the calls of `http.exchange.Exchange` as frames (`keeper_frames`,
`wire`). So the worker makes the response heads and the framing, and applies the limits of the client's connection. The
client gets the same bytes as from a daemon with one process.
Responses that are forwarded unchanged (exec, logs, most uncached resources) do not pass through the keeper: the keeper
only names the member, and the worker forwards the request.

    client ── worker: pipeline ── relay ──frames── keeper: server ── AggregatedRequest ── handler ── caches

The supervisor creates each connection as a socket pair and passes its ends, so nobody else can reach the keeper. Data
from a client or a member is never read as a frame, since each frame begins with its length.
"""
