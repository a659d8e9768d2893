"""Error against unfairness on credit-card.

``python -m tacit.studies.papers.credit_card_fair`` writes ``results/credit-card-fair``.
Interrupted, it goes on where it was (``cells.json`` in the folder); ``--tiny`` shows that everything runs.
"""

from __future__ import annotations

from tacit.studies.papers.fair_pages import main
from tacit.studies.papers.fair_text import Page

PAGE = Page(
    name="credit-card-fair",
    data="credit-card",
    title="Fair and private credit: who defaults",
    parts=("demographic-parity", "printed-noise", "equalized-odds", "sweeps"),
)

if __name__ == "__main__":
    main(PAGE)
