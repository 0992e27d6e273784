"""Discovery, OpenAPI, /version and the probes of an aggregate: what all its members have, as one API server."""
