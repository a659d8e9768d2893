"""What ``tacit silo status`` shows: whether the daemon runs, what is open, and what each waiting study asks for."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.errors import TacitError


def daemon_runs(socket: Path) -> bool:
    """Whether somebody listens at the silo's socket."""
    from tacit.runtime.daemon.client import Client

    with contextlib.suppress(OSError):
        Client(socket).connect().close()
        return True
    return False


def proposal(plan_text: str, policy: Any, entries: list[Any]) -> dict[str, Any]:
    """A waiting study as plain data: what its plan says, and the budget before and after its approval.

    ``comparison`` is the same at every silo of the study, so that owners can compare. ``after`` is None where the study
    would be refused, and ``refusal`` says why.
    """
    from tacit.runtime.daemon.contract import consider, record_of
    from tacit.runtime.daemon.protocol import Plan
    from tacit.silo.chain import replay
    from tacit.silo.spending import joint_price

    plan, budget = Plan.model_validate_json(plan_text), policy.budget
    charged = [account.charged() for account in replay(entries).values()]
    records = int(entries[0].data["records"])
    found: dict[str, Any] = {
        "study": plan.study,
        "comparison": plan.consortium.hex(),
        "plan": json.loads(plan_text),
        "budget": budget.epsilon,
        "before": joint_price(charged, delta=budget.delta).epsilon,
        "after": None,
        "left": None,
        "refusal": None,
    }
    try:
        offer = consider(plan, records=records, record=record_of(plan), allow=policy.allow, shuffle=policy.shuffle)
        after = joint_price([*charged, offer.events], delta=budget.delta).epsilon
        found |= {"after": after, "left": max(0.0, budget.epsilon - after)}
        if after > budget.epsilon:
            found["refusal"] = f"over-budget: epsilon {after:.4g} in all is more than {budget.epsilon:g}"
    except TacitError as error:
        found["refusal"] = str(error)
    return found


def described(row: Mapping[str, Any], folder: Path) -> str:
    """A waiting study in lines for its owner, with the command that approves it."""
    plan = row["plan"]
    algorithm, objective, shuffle = plan["algorithm"], plan["objective"], plan.get("shuffle")
    come = "all of them in every round" if plan["everyone"] else "some of them in each round"
    widths = "-".join(str(width) for width in (*objective.get("channels", ()), *objective.get("hidden", ())))
    model = " ".join(part for part in (objective.get("model", "linear"), widths) if part)
    features = "x".join(str(width) for width in plan["features"])
    channel = algorithm.get("channel", "direct")
    used = f"epsilon {row['before']:.4g} of {row['budget']:g} is used or reserved now"
    if row["refusal"] is None:
        used += f", {row['after']:.4g} after approval: {row['left']:.4g} left"
    else:
        used += f"; the study would be refused: {row['refusal']}"
    lines = {
        "algorithm": f"{algorithm['name']}, {algorithm['num_rounds']} rounds, channel {channel}",
        "model": f"{model}, {plan['task']}, {features} features",
        "silos": f"{plan['silos']}, {come}"
        + ("" if shuffle is None else f", shufflers {', '.join(shuffle['shufflers'])}"),
        "asks for": f"epsilon {plan['epsilon']:g}, delta {plan['delta']:g}",
        "budget": used,
        # The whole of both: a part of either might be that of two plans.
        "compare": f"{row['comparison']} (the same at every silo of this study)",
        "approve": f"tacit silo approve {folder} {row['study']}",
    }
    return "\n".join([f"{plan['name']} waits for approval", *(f"  {name:<10} {text}" for name, text in lines.items())])
