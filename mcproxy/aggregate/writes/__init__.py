"""Writes to an aggregate: each is sent to the member that owns the object or that a create rule names."""
