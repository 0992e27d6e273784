"""Impersonation: requested by clients with Impersonate-* headers, and the headers that carry a user to a cluster."""
