"""The repository's experiments: run from a checkout, not part of the package.

``python -m experiments.NAME`` writes ``results/NAME``: numbers (``data.json``), figures, and a page whose text is in
``pages/NAME.md.j2``. Tuning reads validation records only. ``tacit reproduce`` runs them by name (``gallery.toml``).
"""
