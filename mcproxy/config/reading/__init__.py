"""Reads files into checked, marked nodes: YAML, includes, environment variables, the JSON Schema, merging."""
