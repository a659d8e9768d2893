"""Error against unfairness on adult.

``python -m tacit.studies.papers.adult_fair`` writes ``results/adult-fair``.
Interrupted, it goes on where it was (``cells.json`` in the folder); ``--tiny`` shows that everything runs.
"""

from __future__ import annotations

from tacit.studies.papers.fair_pages import main
from tacit.studies.papers.fair_text import Page

PAGE = Page(
    name="adult-fair",
    data="adult",
    title="Fair and private: who earns more than 50,000 dollars",
    parts=("demographic-parity", "printed-noise"),
)

if __name__ == "__main__":
    main(PAGE)
