"""Objects as the API server keeps them: defaults, validation, create, update, delete, CRDs."""
