"""HTTP/1.1 between the transports and the handlers: heads, framing, server and client engines, pool, tunnel.

What an attacker controls: every byte that a client sends, and, less often, every byte of an upstream. `head` and
`framing` judge those bytes strictly before anybody acts on them: what is ambiguous is refused, never repaired. Nothing
here knows Kubernetes or this proxy's configuration.

The seam for HTTP/2 is `exchange.Exchange`: a handler sees one request and answers it, and cannot tell which protocol
version carried it.
"""
