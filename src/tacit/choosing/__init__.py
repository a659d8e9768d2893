"""Which algorithm: a situation in, the theorems that apply to it out, with what each promises, and a study to run."""

from tacit.choosing.candidates import Candidate, candidates, winner
from tacit.choosing.recipe import recipe
from tacit.choosing.situation import Situation

__all__ = ["Candidate", "Situation", "candidates", "recipe", "winner"]
