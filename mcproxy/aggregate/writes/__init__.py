"""Writes to an aggregate: to the member that owns the object, or that a create rule names."""
