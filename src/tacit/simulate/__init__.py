"""Where algorithms run: compiled simulation, and the plain loop beside it."""
