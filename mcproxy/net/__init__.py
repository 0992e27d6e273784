"""Sockets: the TLS and plain transports, listeners, outgoing connections, certificates for SNI, the PROXY protocol.

Knows nothing of HTTP or Kubernetes. Peers are untrusted: before its handshake is complete a connection costs one
socket, one timer and a bounded number of bytes. This package uses callbacks, not coroutines, since the reactor calls
transports.
"""
