"""Checks between sections, of what no section can see alone."""
