"""Sockets: the TLS and plain transports, listeners, outgoing connections, certificates for SNI, the PROXY protocol.

This package is independent of HTTP and Kubernetes. Peers are untrusted: before its handshake is complete, a connection
costs one socket, one timer and a limited number of bytes. The package uses callbacks, not coroutines, because the
reactor calls transports.
"""
