"""Writes the differences between clusters and the desired state, only to objects that mcproxy has created."""
