"""Traffic policy: which rules a request matches, and what the first policy that matches gives it.

Rules are compiled once for each Runtime. What they look at comes from the client, so everything that is remembered here
is bounded, and a decision costs about the same however many rules there are.
"""
