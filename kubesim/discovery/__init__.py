"""Discovery documents and OpenAPI v2 and v3."""
