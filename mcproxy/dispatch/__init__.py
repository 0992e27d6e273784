"""Traffic policies: match requests with rules, and choose the limits and endpoints of the first matching policy.

Rules are compiled once per Runtime. Their input comes from clients, so every cache in this package is bounded, and the
cost of a decision does not depend on the number of rules.
"""
