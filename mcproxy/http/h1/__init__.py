"""HTTP/1.1: message heads, body framing, and the engines of both sides (RFC 9112)."""
