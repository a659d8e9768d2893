"""Which algorithm: a situation in, the theorems that apply to it out, with what each promises, and a study to run."""

from tacit.choosing.candidates import Candidate, candidates, winner
from tacit.choosing.floors import FloorRow, floors
from tacit.choosing.situation import Situation
from tacit.choosing.study import study_for

__all__ = ["Candidate", "FloorRow", "Situation", "candidates", "floors", "study_for", "winner"]
