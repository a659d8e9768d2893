"""Long runs against the silo's daemon: killed at random, and fed what a hostile server could send."""
