"""Experiments as files: from a specification to a run, a result folder and a report."""
