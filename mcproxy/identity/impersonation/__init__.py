"""Impersonation that clients request with Impersonate-* headers."""
