"""The status page: one document without outside assets, made anew from the status document for each request. Pure.

Imported when the page is first asked for: a daemon whose page nobody looks at does without its memory.
"""
