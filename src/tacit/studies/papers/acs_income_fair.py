"""Error against unfairness on acs-income.

``python -m tacit.studies.papers.acs_income_fair`` writes ``results/acs-income-fair``.
Interrupted, it goes on where it was (``cells.json`` in the folder); ``--tiny`` shows that everything runs.
"""

from __future__ import annotations

from tacit.studies.papers.fair_pages import main
from tacit.studies.papers.fair_text import Page

PAGE = Page(
    name="acs-income-fair",
    data="acs-income",
    title="Fair and private: incomes in California, in place of Retired Adult",
    parts=("demographic-parity", "printed-noise"),
)

if __name__ == "__main__":
    main(PAGE)
