"""What a study takes from the silo's account, for the owner and the server to see beside the plan's own price."""

from __future__ import annotations

import logging
from typing import Literal, NamedTuple

from tacit.deploy.silo.consent import Offer
from tacit.deploy.silo.policy import AllowSection
from tacit.deploy.wire import Consent, RefusalError, frame
from tacit.plans.price import TAILS
from tacit.privacy import PricingError
from tacit.silo.ledger import Ledger
from tacit.silo.sampler import sampler_delta
from tacit.silo.spending import Charge, over_budget, percent, rule_words, share

_log = logging.getLogger("tacit.silo")


class Standing(NamedTuple):
    """Shares of the account's budget: what a study takes of it, and what is left when that is taken."""

    takes: float
    left: float


def charge_of(offer: Offer) -> Charge:
    """What a study reserves: its releases, what it keeps of delta for short tails, and how many samples it draws."""
    return Charge(offer.events, TAILS * bool(offer.shares), offer.samples)


def kept_of_plan(offer: Offer) -> float:
    """What a plan keeps of its own delta."""
    return TAILS * bool(offer.shares) + sampler_delta(offer.samples, offer.plan.epsilon)


def check_sampling(offer: Offer, allow: AllowSection) -> None:
    """Refuse releases of batches that are drawn in a way that the owner does not allow."""
    for event in offer.events:
        if event.sampling not in allow.sampling:
            listed = " or ".join(f'"{name}"' for name in allow.sampling)
            raise RefusalError("not-allowed", f'expected sampling {listed}, got "{event.sampling}" in {event.kind}')


def proposed(ledger: Ledger, offer: Offer) -> Standing:
    """Where the account would stand with a study that is not reserved yet.

    A study that does not fit an empty account is refused: what can never be paid for need not be approved.
    """
    charge = charge_of(offer)
    if not ledger.charged <= 1.0:
        raise over_budget(ledger.rule, ledger.charged, ledger.charged)
    try:
        alone = share(ledger.rule, [charge])
        after = share(ledger.rule, [*(account.charged(ledger.rule) for account in ledger.accounts.values()), charge])
    except PricingError as error:
        raise RefusalError("not-allowed", str(error)) from None
    if not alone <= 1.0:
        raise over_budget(ledger.rule, 0.0, alone)
    return Standing(after - ledger.charged, max(0.0, 1 - after))


def reserved(ledger: Ledger, study: str) -> Standing:
    """Where the account stands with a study that is reserved; a refusal if it is overdrawn by now."""
    if not ledger.charged <= 1.0:
        raise over_budget(ledger.rule, ledger.charged, ledger.charged)
    others = [account.charged(ledger.rule) for name, account in ledger.accounts.items() if name != study]
    return Standing(ledger.charged - share(ledger.rule, others), 1 - ledger.charged)


def consent(
    ledger: Ledger,
    offer: Offer,
    standing: Standing,
    *,
    state: Literal["consented", "pending"] = "consented",
    next_round: int = 0,
) -> bytes:
    """The silo's consent as a frame: the plan's own price, and what the study takes from this account."""
    found = Consent(
        study=offer.plan.study,
        state=state,
        epsilon=offer.price.epsilon,
        delta=offer.price.delta,
        rule=ledger.rule.name,
        takes=standing.takes,
        left=standing.left,
        noise_multipliers={event.kind: event.noise_multiplier for event in offer.events},
        next_round=next_round,
    )
    return frame(found.model_dump_json())


def tell_reserved(ledger: Ledger, offer: Offer) -> None:
    """Say in the silo's log that a study was reserved, with both of its prices."""
    study, cost = offer.plan.study, offer.price
    own = f"its own price is epsilon {cost.epsilon:.4f} at delta {cost.delta:g}"
    takes, left = map(percent, reserved(ledger, study))
    _log.info("study %s reserved: %s; it takes %s of the account, %s is left", study, own, takes, left)


def tell_owner(ledger: Ledger) -> None:
    """Say in the silo's log by which rule its account is kept, and whether anything is left of it."""
    rule, used = ledger.rule, ledger.charged
    held = f"epsilon {rule.epsilon:g} at delta {rule.delta:g}, rule {rule_words(rule)}"
    _log.info("the account: %s; %s of it is used or reserved", held, percent(used))
    if not used <= 1.0:
        _log.warning(
            "the account is overdrawn: what was released or reserved takes %s of it (%s), so nothing more is granted; "
            "raise budget.epsilon if these records may lose more, or serve others from a new folder",
            percent(used),
            held,
        )
