"""``python -m experiments.fair NAME``."""

from experiments.fair.driver import main

main()
