"""The registry of objects: defaults, validation, create, update, delete, CRDs."""
