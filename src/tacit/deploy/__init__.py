"""Parties as processes of their own: silo, server, shuffler, and Flower between them. ``wire`` is what they share."""
