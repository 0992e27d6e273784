"""Aggregates: several clusters as one API, read from caches."""
