"""Handlers of resource requests (get, list, watch, writes, subresources) and of non-resource paths."""
