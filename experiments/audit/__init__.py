"""The repository's own audit: every algorithm and every printed claim under attack, written to ``results/audit``."""
