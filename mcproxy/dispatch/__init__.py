"""Traffic policy: which rules a request matches, and which limits and endpoints the first matching policy gives it.

Rules are compiled once per Runtime. Their input comes from clients, so every cache here is bounded, and the cost of a
decision does not depend on the number of rules.
"""
