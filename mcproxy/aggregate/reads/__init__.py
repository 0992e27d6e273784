"""Reads from cache: get and list."""
