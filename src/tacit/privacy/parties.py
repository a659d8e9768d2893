"""What each party sees of a channel, and what is left of the guarantee when parties talk to each other."""

import math
from collections.abc import Iterable, Mapping

from tacit.algorithm import Channel
from tacit.privacy.accountant import colluding
from tacit.privacy.events import Event, PricingError
from tacit.privacy.schedule import has_reports

SEES: Mapping[Channel, tuple[tuple[str, str], ...]] = {
    "direct": (
        ("server", "every message of every silo, each already noised by its silo"),
        ("other silos", "what the server broadcasts"),
    ),
    "pairwise": (
        ("server", "masked messages, of which only the noised sum over all silos of a round can be read"),
        ("other silos", "what the server broadcasts, and their own shares of the noise"),
    ),
    "trusted": (
        ("server", "every silo's statistic without noise: it is trusted with them, and adds the noise itself"),
        ("other silos", "what the server broadcasts, after its noise"),
    ),
    "shuffled-sum": (
        ("server", "the noised sum over all silos, and no message of any"),
        ("shuffler", "sealed shares and who sent them; it must open nothing but their sum"),
        ("other silos", "what the server broadcasts"),
    ),
    "shuffled-reports": (
        ("server", "every record's randomised report, in an order that tells neither record nor silo"),
        ("shuffler", "sealed reports, and which silo sent how many; not what they say"),
        ("other silos", "what the server broadcasts"),
    ),
    "open": (("everyone who listens", "every silo's statistic without noise"),),
}
LOCAL_STEPS = ("server, in a silo's turn", "that silo's model after local steps, each noised by the silo")


def parties(channel: Channel, local_steps: int = 1) -> tuple[tuple[str, str], ...]:
    """Who sees what; local steps at one silo in turn add to what the server sees.

    >>> [who for who, _ in parties("shuffled-reports", local_steps=4)]
    ['server', "server, in a silo's turn", 'shuffler', 'other silos']
    """
    seen = SEES[channel]
    return seen if local_steps == 1 or channel == "open" else (seen[0], LOCAL_STEPS, *seen[1:])


def without_shuffler(events: Iterable[Event], *, delta: float) -> float | None:
    """Epsilon if the shuffler hands everything to the server; none where no shuffled report is part of the price."""
    events = tuple(events)
    if not has_reports(events):
        return None
    try:
        return colluding(events, delta=delta).epsilon
    except PricingError:
        # Reports that tell nearly everything by themselves: no number is known, so none is promised.
        return math.inf
