"""Files that the configuration names: certificates and keys, key sets, token files."""
