"""A Flower app whose clients do nothing."""
