"""Error against unfairness on three data sets: Gupta, Poornash, Lowy and Razaviyayn (arXiv:2411.07889).

``python -m experiments.fair NAME`` writes ``results/NAME``; ``pages.toml`` has the names. Interrupted, it goes on where
it was (``parts.json`` in the folder); ``--tiny`` shows that everything runs.
"""
