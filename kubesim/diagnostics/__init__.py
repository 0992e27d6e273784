"""Instruments for tests: the audit log of requests, faults, endpoints that are starting."""
