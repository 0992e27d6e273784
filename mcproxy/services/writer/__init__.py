"""Writes the differences between clusters and the desired state, to objects that mcproxy has made."""
