"""Reads the files that the configuration names: certificates and keys, key sets, token files."""
