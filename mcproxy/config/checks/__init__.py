"""Checks across sections, which run after all sections have been read."""
