"""Caches of members' objects and their recent events. Each object is decoded once, to bytes that are served as is."""
