"""Metrics: counters and histograms of all processes of a daemon, and their text for Prometheus.

`Metrics` counts, one object in each process. Gauges are not counted: they are read from the status document when the
text is made (`gauges`). docs/metrics.md lists every metric.

This replaces prometheus-client: one of its counters costs 1 µs an increment and one of its histograms 2 µs, with a lock
for each, its text of 10,000 series blocks for 100 ms, and its counts cannot be taken out and added up in another
process. The tests parse every text with its parser.
"""
