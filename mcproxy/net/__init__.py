"""Sockets: the TLS and plain transports, listeners, outgoing connections, certificates for SNI, the PROXY protocol.

Knows nothing of HTTP or Kubernetes. What a peer sends here is untrusted: before a handshake is done it costs one
socket, one timer and a bounded number of bytes. Callbacks (not coroutines) live here, since a transport is called by
the reactor.
"""
