"""HTTP/1.1 and HTTP/2: server and client engines, connection pools and tunnels.

An attacker can control every byte from a client and, less often, every byte from an upstream. `h1/head_parser.py`,
`h1/framing.py` and `h2/heads.py` validate these bytes strictly before they are used. Ambiguous messages are rejected,
never repaired. This package does not depend on Kubernetes.

Handlers use `exchange.Exchange`: one request and its response, independent of the protocol version.
"""
