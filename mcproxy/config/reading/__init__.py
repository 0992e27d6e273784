"""From files to checked, marked nodes: YAML, includes, environment variables, the JSON Schema, merging."""
