"""The shuffler's own process: takes sealed contributions of many silos, and says only what hides who sent what."""
