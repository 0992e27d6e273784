"""Measures mcproxy against nginx, a plain twisted.web proxy and no proxy at all, on one machine, in paired rounds.

Run it as ``python -m bench`` from the top of the repository; it needs nginx and wrk (``apt-get install -y nginx-light
wrk``) and leaves no process behind. The figures that it must reach stand in `bench.report`.
"""
