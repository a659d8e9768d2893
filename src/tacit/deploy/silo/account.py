"""What a study takes from the silo's account; owner and server see it beside the plan's own price."""

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

_State = Literal["consented", "pending"]
_log = logging.getLogger("tacit.silo")


class Shares(NamedTuple):
    """Shares of the account: what a study takes, and what is left then."""

    takes: float
    left: float


def charge_of(offer: Offer) -> Charge:
    """What a study reserves: its releases, the delta for short tails, and how many samples it draws."""
    return Charge(offer.events, TAILS * bool(offer.shares), offer.samples)


def kept_of_plan(offer: Offer) -> float:
    """The part of a plan's own delta that is kept for short tails and for the sampler."""
    return TAILS * bool(offer.shares) + sampler_delta(offer.samples, offer.plan.epsilon)


def check_sampling(offer: Offer, allow: AllowSection) -> None:
    """Refuse a sampling that the owner does not allow."""
    for event in offer.events:
        if event.sampling not in allow.sampling:
            listed = " or ".join(f'"{name}"' for name in allow.sampling)
            raise RefusalError("not-allowed", f'expected sampling {listed}, got "{event.sampling}" in {event.kind}')


def proposed(ledger: Ledger, offer: Offer) -> Shares:
    """Shares of a study that is not reserved yet; one that does not fit even an empty account is refused."""
    charge = charge_of(offer)
    _check_balance(ledger)
    try:
        alone = share(ledger.rule, [charge])
        after = share(ledger.rule, [*(account.charged(ledger.rule) for account in ledger.accounts.values()), charge])
    except PricingError as error:
        raise RefusalError("not-allowed", str(error)) from None
    if not alone <= 1.0:
        raise over_budget(ledger.rule, 0.0, alone)
    return Shares(after - ledger.charged, max(0.0, 1 - after))


def reserved(ledger: Ledger, study: str) -> Shares:
    """Shares of a study that is reserved; a refusal if the account is overdrawn by now."""
    _check_balance(ledger)
    others = [account.charged(ledger.rule) for name, account in ledger.accounts.items() if name != study]
    return Shares(ledger.charged - share(ledger.rule, others), 1 - ledger.charged)


def _check_balance(ledger: Ledger) -> None:
    if not ledger.charged <= 1.0:
        raise over_budget(ledger.rule, ledger.charged, ledger.charged)


def consent(ledger: Ledger, offer: Offer, shares: Shares, state: _State = "consented", next_round: int = 0) -> bytes:
    """The silo's consent as a frame: the plan's own price, and what the study takes from this account."""
    message = Consent(
        study=offer.plan.study,
        state=state,
        epsilon=offer.price.epsilon,
        delta=offer.price.delta,
        rule=ledger.rule.name,
        takes=shares.takes,
        left=shares.left,
        noise_multipliers={event.kind: event.noise_multiplier for event in offer.events},
        next_round=next_round,
    )
    return frame(message)


def log_reserved(ledger: Ledger, offer: Offer) -> None:
    """Log that a study was reserved, with both of its prices."""
    study, price = offer.plan.study, offer.price
    takes, left = map(percent, reserved(ledger, study))
    own = f"its own price is epsilon {price.epsilon:.4f} at delta {price.delta:g}"
    _log.info("study %s reserved: %s; it takes %s of the account, %s is left", study, own, takes, left)


def log_account(ledger: Ledger) -> None:
    """Log by which rule the account is kept, and whether anything is left of it."""
    rule, used = ledger.rule, percent(ledger.charged)
    budget = f"epsilon {rule.epsilon:g} at delta {rule.delta:g}, rule {rule_words(rule)}"
    _log.info("the account: %s; %s of it is used or reserved", budget, used)
    if not ledger.charged <= 1.0:
        _log.warning(
            "the account is overdrawn: what was released or reserved takes %s of it (%s), so nothing more is granted; "
            "raise budget.epsilon if these records may lose more, or serve others from a new folder",
            used,
            budget,
        )
