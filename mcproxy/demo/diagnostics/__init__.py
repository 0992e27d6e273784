"""The instruments of tests: the audit log of requests, faults, endpoints that are starting."""
