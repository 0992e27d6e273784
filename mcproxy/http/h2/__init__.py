"""HTTP/2: frames, header blocks, message heads, and the engines of both sides (RFC 9113, RFC 7541)."""
