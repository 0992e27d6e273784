"""HPACK: the compression of HTTP/2's header blocks (RFC 7541). Pure: bytes in, fields out, and the other way."""
