"""Discovery, OpenAPI, /version and the probes of an aggregate: the documents of all its members, as one API server."""
