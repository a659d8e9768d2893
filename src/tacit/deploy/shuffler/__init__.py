"""The shuffler's own process: takes deposits of many silos, and releases nothing that tells who sent what."""
