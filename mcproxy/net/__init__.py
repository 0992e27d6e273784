"""Sockets: the TLS and plain transports, listeners, outgoing connections, certificates for SNI, the PROXY protocol.

Knows nothing of HTTP or Kubernetes. Everything a peer sends is untrusted: before its handshake is complete a connection
costs one socket, one timer and a bounded number of bytes. This package uses callbacks, not coroutines, since transports
are called by the reactor.
"""
