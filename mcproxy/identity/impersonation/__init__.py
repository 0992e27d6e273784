"""Impersonation: what a client asks for by Impersonate-*, and the headers that carry a user to a cluster."""
