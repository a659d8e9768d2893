"""Models of installed packages at a silo: the owner installs them and lists them, and no other code is loaded."""

from __future__ import annotations

from tacit.deploy.silo.policy import AllowSection
from tacit.deploy.wire import Plan, RefusalError
from tacit.errors import TacitError
from tacit.objectives.installed import installed


def check_installed(plan: Plan, allow: AllowSection) -> None:
    """Refuse a plan whose model is not exactly what the owner has listed and installed.

    Formal guarantee: a plan that passes names a model of the policy and pins its source by the policy's own digest,
    which is that of the source on disk. Nothing of a package is imported before, and then only if its source still has
    that digest (`tacit.objectives.installed.loaded`).
    """
    name = str(plan.objective.get("model"))
    listed, pinned = allow.models[name], plan.objective.get("model_digest")
    if pinned != listed.digest:
        raise RefusalError("model", f"expected model_digest={listed.digest}, of the {name} that the owner has listed")
    if at_hand(allow).get(name) != listed.digest:
        raise RefusalError(
            "model", f"the {name} that is installed here is not the one that the owner has listed, or is gone"
        )


def at_hand(allow: AllowSection) -> dict[str, str]:
    """The models of a policy that are installed as it lists them, with the digests of their source."""
    found = {}
    for name, listed in allow.models.items():
        try:
            here = installed(name)
        except (TacitError, OSError):
            continue
        if here is not None and (here.version, here.digest) == (listed.version, listed.digest):
            found[name] = here.digest
    return found
