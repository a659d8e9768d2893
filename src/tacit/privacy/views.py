"""Zero-concentrated and Renyi views of a schedule, for comparison with papers that state them.

Both are valid upper bounds and looser than the `tight` accountant; nothing in Tacit depends on them.
dp_accounting reads `GaussianDpEvent(x)` under REPLACE_ONE in two ways: its RDP accountant takes x = sigma
over the replace-one sensitivity (the noise multiplier used here), its PLD accountant x = sigma/C, twice that.

References:
    Bun, Steinke. Concentrated differential privacy. TCC 2016.
    Wang, Balle, Kasiviswanathan. Subsampled Renyi differential privacy. AISTATS 2019.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from scipy.optimize import minimize_scalar

from tacit.privacy.discrete import effective_multiplier
from tacit.privacy.events import Event, PricingError, non_negative, probability
from tacit.privacy.schedule import gaussian_mu, has_reports, is_subsampled


def zcdp_rho(events: Iterable[Event]) -> float:
    """The rho for which un-subsampled releases are rho-zCDP: half the sum of z^-2.

    Formal guarantee: valid for continuous and discrete Gaussians alike. Subsampled events raise: sampling
    does not improve zCDP.

    >>> plan = Event(kind="g", noise_multiplier=5.0, count=50, records=9, batch=9, sampling="full")
    >>> round(zcdp_rho([plan]), 9)
    1.0
    """
    events = tuple(events)
    _refuse_reports(events, "zcdp")
    for event in events:
        if is_subsampled(event):
            raise PricingError(
                f'Expected sampling "full" or "one-pass" for the zcdp accountant, not "{event.sampling}"; '
                'sampling does not amplify zCDP, use accountant="tight".'
            )
    return gaussian_mu(events) ** 2 / 2


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Smallest epsilon that rho-zCDP implies at delta by the Renyi conversion of Canonne, Kamath, Steinke.

    Formal guarantee: valid for every rho-zCDP mechanism; never above rho + 2 sqrt(rho ln(1/delta)).

    >>> round(zcdp_epsilon(0.1, 1e-6), 3)
    2.142
    """
    rho, delta = non_negative("rho", rho), probability("delta", delta)
    if rho == 0.0:
        return 0.0

    def at(log_excess: float) -> float:
        alpha = 1 + math.exp(log_excess)
        return rho * alpha + (
            math.log(1 / delta) / (alpha - 1) + math.log1p(-1 / alpha) - math.log(alpha) / (alpha - 1)
        )

    textbook = rho + 2 * math.sqrt(rho * math.log(1 / delta))
    centre = 0.5 * (math.log(math.log(1 / delta)) - math.log(rho))
    best = minimize_scalar(at, bounds=(centre - 4, centre + 4), method="bounded")
    return max(0.0, min(textbook, float(best.fun)))


def rdp_epsilon(events: Sequence[Event], delta: float) -> float:
    """Epsilon of a schedule by dp_accounting's Renyi accountant.

    Formal guarantee: an upper bound for full-batch, one-pass and without-replacement events. Other sampling
    raises: dp_accounting has no Renyi bound for it under replace-one adjacency.
    """
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    _refuse_reports(events, "rdp")
    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    rest = [e for e in events if not is_subsampled(e)]
    if rest:
        accountant.compose(dp_accounting.GaussianDpEvent(1 / gaussian_mu(rest)))
    for event in filter(is_subsampled, events):
        if event.sampling == "wor" and event.protects == "record":
            base = dp_accounting.GaussianDpEvent(effective_multiplier(event))
            sampled = dp_accounting.SampledWithoutReplacementDpEvent(event.records, event.batch, base)
            accountant.compose(sampled, event.count)
        else:
            raise PricingError(
                f'Expected sampling "full", "one-pass" or "wor" of whole records for the rdp accountant, not '
                f'"{event.sampling}" protecting {event.protects}; use accountant="tight".'
            )
    return float(np.max([accountant.get_epsilon(delta), 0.0]))


def _refuse_reports(events: Iterable[Event], accountant: str) -> None:
    if has_reports(events):
        raise PricingError(f'Expected Gaussian releases for the {accountant} accountant; use accountant="tight".')
