"""Metrics: what has happened in all processes of a daemon (counters, histograms), and their text for Prometheus.

`Metrics` counts, one object in each process. What the daemon *is* (gauges) is not counted anywhere: it is read from the
status document when the text is made (`gauges`). docs/metrics.md lists every metric.

Own code instead of prometheus-client: one of its counters costs 1 µs an increment and one of its histograms 2 µs, with
a lock for each, its text of 10,000 series blocks for 100 ms, and its counts cannot be taken out and added up elsewhere.
The tests read every text with its parser.
"""
