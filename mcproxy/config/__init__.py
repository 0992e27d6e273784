"""Loads the configuration: YAML with source marks, JSON Schema, cross-references, kubeconfigs, an immutable model.

This package does not open sockets or use the reactor. Any package may import `model`, which imports no other package.
"""
