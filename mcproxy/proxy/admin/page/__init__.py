"""The status page: one document without outside assets, made from the status document for each request. Pure.

Imported at the first request for the page: a daemon whose page is not used does without its memory.
"""
