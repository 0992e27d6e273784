"""What the proxy tells about its work: the record of a finished request, and the access log made of it.

`record` is the leaf that any room may use; the writers beside it own files and threads and belong to the daemon.
A peer chooses most of what a record holds, so every writer escapes and bounds what it writes.
"""
