"""Pages of results that an earlier protocol has made: read until their studies are run again, then deleted."""
