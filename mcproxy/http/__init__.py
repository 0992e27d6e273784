"""HTTP/1.1 and HTTP/2 between transports and handlers: server and client engines, connection pools, tunnels.

An attacker controls every byte that a client sends and, less often, every byte of an upstream. `h1/head_parser.py`,
`h1/framing.py` and `h2/heads.py` validate them strictly before anything acts on them: ambiguous messages are rejected,
never repaired. This package knows
nothing of Kubernetes.

`exchange.Exchange` is the interface for handlers: one request and its response, independent of the protocol version.
"""
