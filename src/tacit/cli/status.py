"""A silo's folder as plain data and in words: its account, what is open, and what each waiting study asks for.

Commands import this when they run, not before: it loads the daemon's code.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.counting.request import Request
from tacit.deploy.client import Client
from tacit.deploy.contract import record_of, seat_of
from tacit.deploy.permissions import as_owner, check_owner, other_owner
from tacit.deploy.silo.consent import Offer, charge_of, check_delta, check_sampling, consider, pool_of, terms_of
from tacit.deploy.silo.owner import decide
from tacit.deploy.silo.policy import Policy, PolicyError, load_policy, policy_from
from tacit.deploy.silo.service import Home, home_of
from tacit.deploy.wire import REPORTS, Plan
from tacit.errors import TacitError, counted, printable
from tacit.plans.price import TAILS
from tacit.privacy import PricingError
from tacit.privacy.anonymity import colluding_silos
from tacit.privacy.pairwise import if_all_collude
from tacit.silo.chain import Counter, Entry, Notes, WrittenOff, promised, replay, settled, written_off
from tacit.silo.ledger import check_beginning, inspect, refusals, waiting
from tacit.silo.pools import TRAINING, VALIDATION
from tacit.silo.spending import Charge, LedgerError, joint_price, over_budget, percent, pool_shares, rule_words, share

_BEFORE = "with everything that was released before"


def status_of(folder: Path) -> dict[str, Any]:
    """Whether a silo's daemon runs and has run, its account, and the studies that are open or wait for approval.

    ``decided`` are ends that the owner has decided and the daemon has yet to make entries of.
    """
    policy, home, problem = in_force(folder)
    entries = books(home)
    live = {study: account for study, account in replay(entries).items() if account.live}
    plans, names = waiting(home.ledger) if entries else {}, plans_in(entries)
    return {
        "daemon": is_running(home),
        "ran": bool(entries),
        "policy_problem": problem,
        "account": account_now(policy, entries),
        "open": [
            {"study": s, "name": name_of(names[s]), "answers": a.answers, "expires": moment(a.expires)}
            for s, a in live.items()
        ],
        "pending": [
            proposal(plan, policy, entries)
            | {"approved": (home.approved / study).is_file(), "fields": fields_of(folder, policy)}
            for study, plan in plans.items()
        ],
        "refusals": [row | {"last": moment(row["last"])} for row in (refusals(home.ledger) if entries else [])],
        "decided": sorted(path.name for path in home.decided.iterdir()) if home.decided.is_dir() else [],
    }


def waiting_study(folder: Path, words: str) -> dict[str, Any]:
    """The waiting study that somebody means, as :func:`proposal` gives it; named as in :func:`end`."""
    policy, home = _home(folder)
    study, name, state = _named(_studies(home), words, ("pending",))
    if state != "pending":
        raise TacitError(f"Expected a study that waits for approval, but {name} ({study}) is {state}.")
    return proposal(waiting(home.ledger)[study], policy, books(home)) | {"fields": fields_of(folder, policy)}


def fields_of(folder: Path, policy: Policy) -> list[str]:
    """The columns of this silo's file that a study reads, by its schema; none where it has no schema."""
    if policy.data.columns is None:
        return []
    from tacit.data.schema import read_schema

    try:
        schema = read_schema(folder / policy.data.columns)
    except (TacitError, OSError):
        return []
    return [*schema.used, schema.target.column]


def approve(folder: Path, study: str, note: str = "") -> None:
    """Approve a waiting study by its whole identity: a name may be that of another plan by now."""
    _, home = _home(folder)
    check_owner(folder)
    decide(home.approved, study, "approve", note=note)


def end(folder: Path, words: str, verb: str, note: str = "") -> dict[str, Any]:
    """Reject, close or revoke a study, by its identity, the beginning of it, or its name.

    The daemon makes an entry of it before it answers anything more, or when it is started.
    """
    _, home = _home(folder)
    check_owner(folder)
    allowed = {"reject": ("pending",), "close": ("open",), "revoke": ("pending", "open", "ended")}[verb]
    study, name, state = _named(_studies(home), words, allowed)
    if state not in allowed:
        way = {"pending": "reject or revoke", "open": "close or revoke", "ended": "revoke"}[state]
        raise TacitError(f"Expected a study that is {' or '.join(allowed)} to {verb}, but {name} is {state}; {way} it.")
    decide(home.decided, study, verb, _terms(home, study) if verb == "revoke" else "", note)
    return {"study": study, "name": name, "decision": verb, "daemon": is_running(home)}


def _terms(home: Home, study: str) -> str:
    """What a study asks for, as a digest; empty where its plan cannot be read."""
    try:
        return terms_of(Plan.model_validate_json((waiting(home.ledger) | plans_in(books(home)))[study]))
    except (KeyError, ValueError):
        return ""


def is_running(home: Home) -> bool:
    """Whether a daemon listens on the silo's socket."""
    with contextlib.suppress(OSError):
        Client(home.socket).connect().close()
        return True
    return False


def _studies(home: Home) -> dict[str, tuple[str, str]]:
    """Name and state of every study that a silo knows, by identity."""
    entries = books(home)
    if not entries:
        raise TacitError(f"No study was proposed yet: start the daemon with: tacit silo serve {home.folder}")
    accounts, pending = replay(entries), waiting(home.ledger)
    found = {study: (name_of(plan), "pending") for study, plan in pending.items()}
    for study, plan in plans_in(entries).items():
        found[study] = (name_of(plan), "open" if accounts[study].live else "ended")
    return found


def _named(studies: Mapping[str, tuple[str, str]], words: str, wanted: tuple[str, ...]) -> tuple[str, str, str]:
    """The one study that somebody means: of those in a ``wanted`` state if any fits, else those that have not ended."""
    fitting = [s for s, (name, _) in studies.items() if words in (s, name) or (len(words) >= 4 and s.startswith(words))]
    # A proposer may name a plan after the identity of another.
    fitting = [words] if words in studies else fitting
    living = [study for study in fitting if studies[study][1] != "ended"]
    narrowed = [study for study in living if studies[study][1] in wanted] or living or fitting
    if len(narrowed) != 1:
        listed = "; ".join(f"{name} {study} ({state})" for study, (name, state) in studies.items()) or "none"
        found = "no study" if not narrowed else f"{len(narrowed)} studies"
        raise TacitError(f"Expected one study, but {found} of this silo fit {words!r}; there are: {listed}.")
    return narrowed[0], *studies[narrowed[0]]


def name_of(plan: str) -> str:
    """The name of a plan in JSON."""
    try:
        return str(json.loads(plan)["name"])
    except (ValueError, KeyError, TypeError):
        return "(unnamed)"


def plans_in(entries: list[Entry]) -> dict[str, str]:
    """The plans of all studies that were ever reserved."""
    return {entry.study: str(entry.data.get("plan", "")) for entry in entries if entry.kind == "reserve"}


def account_now(policy: Policy, entries: list[Entry]) -> dict[str, Any]:
    """The account as plain data: its rule and budget, and the shares of it that are spent, charged and left.

    ``charged`` is what is spent or reserved. ``validation`` has the shares of the records that are set aside, whose
    account is their own; the others are of those that train. ``promised_epsilon`` is the largest that the ledger has
    had since its first study, with what was written off: that is what holds for all messages together.
    """
    written, earlier = written_off(entries), dict[str, Any](written_off=None)
    if written is not None:
        earlier = {"written_off": written._asdict()}
    try:
        rule = settled(entries, policy.limit)
    except LedgerError as error:
        if error.code != "written-off" or written is None:
            raise
        return _nothing_left(policy, written) | earlier
    accounts, split = list(replay(entries).values()), Notes(entries).split
    charged = pool_shares(rule, [(own.pool, own.charged(rule)) for own in accounts])
    spent = pool_shares(rule, [(own.pool, own.spent()) for own in accounts])
    aside = None if split is None else {"records": split.validation, **_parts(spent[VALIDATION], charged[VALIDATION])}
    return {
        "rule": rule.name,
        "order": rule.order,
        "rule_words": rule_words(rule),
        "epsilon": rule.epsilon,
        "delta": rule.delta,
        "promised_epsilon": promised(entries, rule) + (0.0 if written is None else written.epsilon),
        **_parts(spent[TRAINING], charged[TRAINING]),
        "validation": aside,
    } | earlier


def _parts(spent: float, charged: float) -> dict[str, float | None]:
    """The shares of an account."""
    return {"spent_share": finite(spent), "charged_share": finite(charged), "left_share": max(0.0, 1 - charged)}


def _nothing_left(policy: Policy, written: WrittenOff) -> dict[str, Any]:
    """The account of a ledger whose predecessors count as having spent all of the policy's budget."""
    rule = policy.limit.fresh
    terms = {"rule": rule.name, "order": rule.order, "rule_words": rule_words(rule), "epsilon": 0.0}
    shares = {"spent_share": None, "charged_share": None, "left_share": 0.0, "validation": None}
    return {**terms, "delta": rule.delta, "promised_epsilon": written.epsilon, **shares}


def account_words(account: Mapping[str, Any]) -> str:
    """The account in a sentence or two."""
    words = (
        f"The account: epsilon {account['epsilon']:g} at delta {account['delta']:g}, rule {account['rule_words']}. "
        f"Spent {percent_of(account['spent_share'])} of it, with reservations {percent_of(account['charged_share'])}; "
        f"{percent_of(account['left_share'])} is left."
    )
    if account["charged_share"] is None or account["charged_share"] > 1.0:
        words += " It is overdrawn: nothing more is granted."
    if account["validation"] is not None:
        aside = account["validation"]
        words += (
            f" {counted(aside['records'], 'record')} set aside for validation have an account of their own with the "
            f"same budget: spent {percent_of(aside['spent_share'])}, with reservations "
            f"{percent_of(aside['charged_share'])}; {percent_of(aside['left_share'])} is left."
        )
    if account["written_off"] is not None:
        lost = account["written_off"]
        words += (
            f" Besides, epsilon {lost['epsilon']:g} at delta {lost['delta']:g} of lost ledgers is written off, and "
            f"counts as spent: all messages together have epsilon {account['promised_epsilon']:g}."
        )
    elif account["promised_epsilon"] > account["epsilon"]:
        words += f" It has had epsilon {account['promised_epsilon']:g}, which is what holds for all messages together."
    return words


def finite(part: float) -> float | None:
    """A share as JSON can say it: none where nothing is left to divide by."""
    return part if math.isfinite(part) else None


def percent_of(part: float | None) -> str:
    """A share of an account as people read it; none is more than all of it."""
    return percent(math.inf if part is None else part)


def account_of_plan(plan: Any, path: Path) -> dict[str, Any]:
    """An account, and what every silo of a study would take from it: the policy's, with the ledger beside it if any.

    The silos' numbers of records are the study's. ``left_share`` is None where studies do not simply add up.
    """
    policy = load_policy(path)
    ledger = home_of(path.parent, policy).ledger
    entries = inspect(ledger) if ledger.exists() else []
    rule, found = settled(entries, policy.limit), account_now(policy, entries)
    kept = TAILS * (plan.study.algorithm.channel == "shuffled-sum")
    rows = []
    for silo in plan.silos:
        row = {"name": silo.name, "own_epsilon": None, "takes_share": None, "left_share": None, "refusal": None}
        try:
            check_delta(plan.study.privacy.delta, rule)
            takes = share(rule, [Charge(silo.events, kept)])
            row |= {"own_epsilon": silo.price and silo.price.epsilon, "takes_share": finite(takes)}
            if rule.name != "fixed-in-advance":
                row["left_share"] = max(0.0, found["left_share"] - takes)
        except TacitError as error:
            row["refusal"] = str(error)
        rows.append(row)
    return {**found, "silos": rows}


def proposal(plan_text: str, policy: Policy, entries: list[Entry]) -> dict[str, Any]:
    """A waiting study as plain data: what its plan says, its own price, and what it would take from the account.

    ``comparison`` is the same at every silo of the study, so that owners can compare. ``own_epsilon`` is None where the
    plan cannot be priced, ``takes_share`` where the account cannot hold it; ``refusal`` says why it would be refused.
    """
    plan, rule = Plan.model_validate_json(plan_text), settled(entries, policy.limit)
    charged = [(own.pool, own.charged(rule)) for own in replay(entries).values()]
    split = Notes(entries).split
    found: dict[str, Any] = {
        "study": plan.study,
        "proposer": plan.proposer or "not known",
        "comparison": plan.compared,
        "plan": json.loads(plan_text),
        "own_epsilon": None,
        "own_delta": plan.delta,
        "account": account_now(policy, entries),
        "takes_share": None,
        "left_share": None,
        "refusal": None,
        "left_if_all_collude": None,
        "pool": None,
        "joint_epsilon": None,
        "rests_on": rests_on(json.loads(plan_text)),
        "elsewhere": _elsewhere(plan),
    }
    try:
        check_delta(plan.delta, rule)
        pool = pool_of(plan, split)
        records = int(entries[0].data["records"]) if split is None or pool is None else split.size(pool)
        found["pool"] = pool
        own: dict[str, Any] = {"shuffle": policy.shuffle, "pairwise": policy.pairwise, "silo": policy.name}
        offer = consider(plan, records=records, record=record_of(plan), allow=policy.allow, **own)
        found["left_if_all_collude"] = _left(plan, offer)
        check_sampling(offer, policy.allow)
        found["own_epsilon"] = offer.price.epsilon
        paying = pool or TRAINING
        before = pool_shares(rule, charged)[paying]
        after = pool_shares(rule, [*charged, (pool, charge_of(offer))])[paying]
        if not after <= 1.0:
            raise over_budget(rule, before, after)
        found |= {"takes_share": after - before, "left_share": 1 - after}
        found["joint_epsilon"] = _with_all_before(entries, paying, offer, rule.delta)
    except TacitError as error:
        found["refusal"] = str(error)
    return found


def _with_all_before(entries: list[Entry], pool: str, offer: Offer, delta: float) -> float | None:
    """The epsilon of all releases about a pool and of this plan, at the account's delta; none if unpriceable."""
    accounts = [account for account in replay(entries).values() if account.pool in (None, pool)]
    made = [account.debited() for account in accounts]
    kept = math.fsum(account.delta_set_aside for account in accounts) + charge_of(offer).delta_set_aside
    try:
        return joint_price([*made, offer.events], delta=delta - kept).epsilon
    except PricingError:
        return None


def _elsewhere(plan: Plan) -> str | None:
    """What the same epsilon would leave of the noise through pairwise sums; none where that is the channel, or is none.

    With c of m silos colluding, pairwise sums have sqrt(m / (m - c)) times the noise of a trusted server, direct
    messages sqrt(m) times.
    """
    if plan.algorithm.get("channel", "direct") != "direct" or plan.silos < 3:
        return None
    times = math.sqrt(plan.silos - 1)
    return f"through pairwise sums the same epsilon leaves {times:.2g} times less noise, if at most 1 silo colludes"


def _left(plan: Plan, offer: Offer) -> float | None:
    """The epsilon of a plan of pairwise sums if all other silos collude with the server."""
    peers = seat_of(plan, offer.events[0].records).peers
    return None if peers is None else finite(if_all_collude(offer.events, peers, delta=plan.delta))


def _trust(row: Mapping[str, Any]) -> dict[str, str]:
    """Whom the price of a plan of pairwise sums counts on, and what is left without them."""
    among, left = row["plan"].get("pairwise"), row["left_if_all_collude"]
    if among is None:
        return {}
    others = f"at most {among['colluding']} collude with the server, {among['min_silos']} or more in a round"
    alone = "" if left is None else f"; if all others collude, epsilon is {left:.4g}"
    return {"counts on": f"{', '.join(among['silos'])}: {others}{alone}"}


def channel_of(plan: Mapping[str, Any]) -> str:
    """The channel of a plan's messages; ledgers of version 0.1 may not say it."""
    return str(plan.get("algorithm", {}).get("channel", "direct")) if plan else "unknown"


def rests_on(plan: Mapping[str, Any]) -> str:
    """What the guarantee of a plan rests on, beside this silo."""
    shuffle = plan.get("shuffle")
    if not plan:
        return "not known: the ledger holds no plan"
    among = plan.get("pairwise")
    if among is not None:
        return (
            f"at most {among['colluding']} of {plan['silos']} silos collude with the server, in rounds of "
            f"{among['min_silos']} or more (pairwise)"
        )
    if shuffle is None:
        return "nothing but this silo"
    silos, names = int(plan["silos"]), list(shuffle["shufflers"])
    honest = silos - colluding_silos(silos, float(shuffle["honest"]))
    secret = f"at least {honest} of {silos} silos keep their noise secret"
    if channel_of(plan) == REPORTS:
        return f"{secret}, and the first shuffler, {names[0]}, does not collude with the server"
    return f"{secret}, and one of the shufflers {', '.join(names)} does not collude with the others"


def described(row: Mapping[str, Any], folder: Path) -> str:
    """A waiting study in lines for its owner, with the commands that approve and reject it."""
    stands = "is approved; it waits for the server to ask again" if row["approved"] else "waits for approval"
    lines = described_lines(row) | {name: printable(text) for name, text in _commands(row, folder).items()}
    said = [f"  {name:<10} {text}" for name, text in lines.items()]
    return "\n".join([f"{row['plan']['name']} {stands}", *said])


def described_lines(row: Mapping[str, Any]) -> dict[str, str]:
    """A waiting study in words: who asks, what for, what is read, what it costs, and what that rests on."""
    plan = row["plan"]
    shuffle, aside = plan.get("shuffle"), plan["algorithm"]["name"] == VALIDATION
    come = "all of them in every round" if plan["everyone"] else "some of them in each round"
    lines = {
        "proposer": row["proposer"],
        "purpose": plan.get("purpose") or "the proposer says none",
        **({"reads": ", ".join(row["fields"]) + ", of records set aside" * aside} if row.get("fields") else {}),
        **_asks(plan),
        "silos": f"{plan['silos']}, {come}"
        + ("" if shuffle is None else f", shufflers {', '.join(shuffle['shufflers'])}"),
        **_trust(row),
        "rests on": row["rests_on"],
        **prices(row),
        **({"elsewhere": row["elsewhere"]} if row["elsewhere"] else {}),
        "compare": row["comparison"],
        "by phone": "read the line above to another silo's owner, and hear the same from them: it is one study for all",
    }
    return {name: printable(text) for name, text in lines.items()}


def _asks(plan: Mapping[str, Any]) -> dict[str, str]:
    """What a plan does with records, and with which model; statistics are of no model."""
    algorithm, objective = plan["algorithm"], plan["objective"]
    channel = f"channel {algorithm.get('channel', 'direct')}"
    if algorithm["name"] == "statistics":
        titles = ", ".join(Request.model_validate(own).title for own in algorithm["statistics"])
        return {"asks": f"one question, {channel}: {titles}, with noise"}
    widths = "-".join(str(width) for width in (*objective.get("channels", ()), *objective.get("hidden", ())))
    name = " ".join(part for part in (objective.get("model", "linear"), widths) if part)
    model = f"{name}, {plan['task']}, {'x'.join(str(width) for width in plan['features'])} features"
    if algorithm["name"] != VALIDATION:
        rounds = counted(algorithm["num_rounds"], "round")
        return {"algorithm": f"{algorithm['name']}, {rounds}, {channel}", "model": model}
    groups = algorithm.get("asked", {}).get("groups") or ()
    own = ", and this silo's own model beside it" if algorithm.get("asked", {}).get("own") else ""
    told = " and ".join(["in all", *(f"by {group}" for group in groups)])
    return {
        "asks": f"one question, {channel}: how many records have which score and truth, {told}, with noise",
        "model": f"{model}; a finished one, which comes with the question and is not changed by it{own}",
    }


def _commands(row: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """What an owner may do with a proposal; whoever looks as somebody else decides as the owner's user."""
    tacit = "tacit" if other_owner(folder) is None else f"{as_owner(folder)} tacit"
    if row["approved"]:
        return {"revoke": f"{tacit} silo revoke {folder} {row['study'][:12]}"}
    return {
        "approve": f"{tacit} silo approve {folder} {row['study']}",
        "reject": f"{tacit} silo reject {folder} {row['study'][:12]}",
    }


def prices(row: Mapping[str, Any]) -> dict[str, str]:
    """Both prices of a waiting study by name: the plan's own, and what it takes from the account."""
    plan, account = row["plan"], row["account"]
    asked = f"it asks for epsilon {plan['epsilon']:g}"
    cost = "none can be proved" if row["own_epsilon"] is None else f"epsilon {row['own_epsilon']:.4g}"
    held = f"epsilon {account['epsilon']:g} at delta {account['delta']:g}, rule {account['rule_words']}"
    if row["refusal"] is not None:
        taken = f"the study would be refused: {row['refusal']}"
    else:
        own = account["validation"] if row["pool"] == VALIDATION else account
        takes, used, left = map(percent_of, (row["takes_share"], own["charged_share"], row["left_share"]))
        whose = "the account of records set aside" if row["pool"] == VALIDATION else "this account"
        taken = f"takes {takes} of {whose} ({held}); {used} is used or reserved now, {left} would be left"
    joint = row["joint_epsilon"]
    together = {} if joint is None else {"together": f"epsilon {joint:.4g} at delta {account['delta']:g}, {_BEFORE}"}
    return {"own price": f"{cost} at delta {row['own_delta']:g} ({asked})", **together, "account": taken}


def in_force(folder: Path) -> tuple[Policy, Home, str | None]:
    """The policy that counts, the silo's home, and what is wrong with the policy on disk.

    While that one cannot be used the daemon refuses everything, and the chain's newest is what the account goes by.
    """
    try:
        return *_home(folder), None
    except PolicyError as error:
        path = folder / "ledger.sqlite"
        kept = Notes(inspect(path)).policy if path.exists() else None
        if kept is None:
            raise
        policy = policy_from(kept)
        return policy, home_of(folder, policy), f"{folder / 'policy.toml'}: {error}"


def _home(folder: Path) -> tuple[Policy, Home]:
    policy = load_policy(folder / "policy.toml")
    return policy, home_of(folder, policy)


def books(home: Home) -> list[Entry]:
    """The verified entries of a silo's ledger; none before its daemon has run, but not where the ledger was lost."""
    # The counter first: a debit that lands in between makes the ledger longer, never shorter.
    counter = Counter(home.counter)
    known = counter.read()
    entries = inspect(home.ledger) if home.ledger.exists() else []
    if known is not None:
        counter.check(entries)
    if not entries:
        check_beginning(home.ledger)
    return entries


def moment(seconds: float) -> str:
    """A moment as people read it, in UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
