"""The server's side of a study among real silos: untrusted, it could be replaced by an attacker without harm."""
