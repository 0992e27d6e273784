"""Discovery, OpenAPI, /version and probes of an aggregate: merges the members' documents as if of one API server."""
