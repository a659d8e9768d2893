"""Tacit beside its peers, on the same data, model, batch and clip: ``make bench-peers``.

One small file per peer, each with ``prepare(work) -> Prepared``. A peer is timed only after it has moved the model
where a plain loop in float64 moves it.
"""
