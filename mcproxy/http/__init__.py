"""HTTP/1.1 between transports and handlers: heads, framing, server and client engines, connection pool, tunnel.

An attacker controls every byte that a client sends and, less often, every byte of an upstream. `head` and `framing`
validate them strictly before anything acts on them: ambiguous messages are rejected, never repaired. This package knows
nothing of Kubernetes.

`exchange.Exchange` is the interface for handlers: one request and its response, independent of the protocol version.
"""
