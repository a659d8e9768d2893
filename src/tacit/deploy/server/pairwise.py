"""The server's part in pairwise sums: rosters, attempts, and the mean that a sum of masked messages stands for.

Silos bring their study keys with their consent. All who have answered since make the roster, and who enrols again. A
round in which somebody is missing is asked again: of the same silos, as soon as all of them are there, or as the next
attempt of the others, and of who has another study key by now. Every attempt costs those who answer it, so a plan has
few to spare; where it has none, silos are asked before a round whether they are there, which costs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from tacit.channel.direct import shaped
from tacit.channel.pairwise import mean_of_total
from tacit.channel.shuffled_sum import joined
from tacit.deploy import contract
from tacit.deploy.pairwise import most_in_total, sums_of, weights_of
from tacit.deploy.wire import Consent, Masked, Plan, RefusalError
from tacit.errors import TacitError
from tacit.plans.assemble import Shapes, shapes_of
from tacit.silo.integers import BOUND
from tacit.silo.release import usable_clips

Summands = Mapping[str, tuple[Masked, bytes]]
Rosters = tuple[tuple[str, ...], ...]


class Summing:
    """Reads the sums of a plan."""

    def __init__(self, plan: Plan) -> None:
        assert plan.pairwise is not None
        self._plan, self._among = plan, plan.pairwise
        records = plan.pairwise.records[plan.silo_index]
        builder = contract.builder_from(plan, records)
        self._shapes: Shapes = shapes_of(builder.noised(1.0), builder.problem, contract.record_of(plan))
        self._algorithm, self._events, _ = contract.affordable(builder, plan, records, self._shapes.dimensions)
        self._sums = sums_of(self._algorithm, self._shapes.messages)

    @property
    def min_silos(self) -> int:
        """The fewest silos of a round."""
        return self._among.min_silos

    @property
    def spare(self) -> int:
        """How many attempts the study has to spare, in all; silos count them too."""
        return self._among.spare_attempts

    def rosters(self, before: Rosters, here: Collection[str], *, is_over: bool) -> Rosters:
        """The rosters of a round, the last one to be asked now, where these silos are here.

        The last one stays while all of its silos are here, unless it ``is_over``, and also where no attempt is left or
        too few are here. Otherwise the next attempt is that of all who are here.
        """
        now = tuple(sorted(here))
        if not before:
            return (now,) if len(now) >= self.min_silos else ()
        stays = set(before[-1]) <= set(here) and not is_over
        if stays or len(now) < self.min_silos or len(before) > self.spare:
            return before
        return (*before, now)

    def carries(self, kind: str) -> bool:
        """Whether rounds of this kind are pairwise sums; those of one silo in turn leave directly."""
        return kind in self._sums

    def check(self, consents: Mapping[str, Consent]) -> None:
        """Raise unless silos will add the noise that the others count on: their masks would not cancel."""
        expected = {event.kind: event.noise_multiplier for event in self._events if event.kind in self._sums}
        for name, consent in consents.items():
            if any(consent.noise_multipliers.get(kind, z) != z for kind, z in expected.items()):
                raise RefusalError(
                    "noise", f"{name}: other noise than the server's; use one version of Tacit everywhere"
                )

    def mean(self, kind: str, broadcast: Any, summands: Summands) -> Any:
        """The mean over the silos of a roster, all of whose messages are there."""
        terms, release = self._sums[kind], self._algorithm.rounds[kind].silo.release
        check_contexts(summands)
        dimension = sum(own.dimension for own in terms.values())
        wrong = [name for name, (_, body) in summands.items() if len(body) != 8 * dimension]
        if wrong:
            raise TacitError(f"{', '.join(wrong)}: expected a message of {dimension} numbers; ask their owners.")
        total = joined(np.frombuffer(body, "<u8") for _, body in summands.values())
        size = release.batch_size
        most = most_in_total(self._among, terms, None if size is None else int(size))
        if np.abs(total.astype(np.float64)).max(initial=0.0) > most:
            raise TacitError(
                "Expected a sum of records and noise, got something larger: masks did not cancel, so some silo of "
                f"{', '.join(summands)} has not said what was asked. Leave it out (--only), or ask its owner."
            )
        clips = usable_clips(release, broadcast)
        by_block = clips if isinstance(clips, Mapping) else {"": clips}
        each = weights_of(self._plan, self._algorithm, kind)[1] * self._plan.silos / len(summands)
        means = mean_of_total(total, terms, by_block, unit=BOUND, each=each)
        shape = self._shapes.messages[kind]
        if not isinstance(clips, Mapping):
            return shaped(shape, means[""])
        return {name: shaped(shape[name], own) for name, own in means.items()}


def check_contexts(summands: Summands) -> None:
    """Raise unless all messages are for one sum: masks of others do not cancel."""
    by_context: dict[str, list[str]] = {}
    for name, (header, _) in sorted(summands.items()):
        by_context.setdefault(header.context, []).append(name)
    if len(by_context) > 1:
        parts = " and ".join(", ".join(names) for names in by_context.values())
        raise TacitError(
            f"Expected all silos to agree on plan, roster and noise; these do not: {parts}. Look whether they pin the "
            "same keys (tacit silo keys), have the same version of Tacit, and none is a test build."
        )
