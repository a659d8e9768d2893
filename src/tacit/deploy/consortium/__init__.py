"""A consortium as its members set it up: kits, what is exchanged, what runs where."""
