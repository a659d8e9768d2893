"""The papers' experiments, one file each: ``python -m tacit.studies.papers.NAME`` writes ``results/NAME``.

Tuning reads validation records only. Each result folder holds the numbers (``data.json``), a figure and one paragraph.
"""
