"""The status page: one HTML document without external assets, rendered from the status document for each request. Pure.

It is imported at the first request for the page, to save memory in daemons whose page is not used.
"""
