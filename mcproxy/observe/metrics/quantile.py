"""Quantiles of histograms. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def quantile(bounds: Sequence[float], counts: Sequence[float], part: float) -> float | None:
    """Return a quantile of a histogram, as Prometheus' `histogram_quantile` does; None of one without a count.

    Within a bucket the counts are taken to be spread evenly. What is in the last one, which has no bound, is at the
    bound below it.
    """
    total = sum(counts)
    if not total:
        return None
    rank = part * total
    seen = lower = 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count and seen + count >= rank:
            return lower + (bound - lower) * (rank - seen) / count
        seen += count
        lower = bound
    return lower
