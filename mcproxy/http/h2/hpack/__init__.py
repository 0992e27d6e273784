"""HPACK: the compression of HTTP/2's header blocks (RFC 7541). Pure: converts bytes to fields, and fields to bytes."""
