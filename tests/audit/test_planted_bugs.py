"""The auditor earns its keep: bugs that are planted into the code of the door are found, each of them."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.audit.searches import audit_extremes, audit_hostile_points
from experiments.audit.table import CLIP, Setting, parameters_for, subject
from tacit.audit import deployed
from tacit.audit.mechanism import audit_mechanism
from tacit.deploy.silo.answering import EXACT
from tacit.objectives import Objective, Problem, mlp, squared
from tacit.plans.catalogue import find
from tacit.privacy import price
from tacit.privacy.allocation import is_amplified
from tacit.privacy.strategy import ONE, Strategy
from tacit.silo import coins, door, integers, local_reports
from tacit.silo.batches import SecretBatch
from tacit.silo.sampler import discrete_gaussian
from tests.audit.strict import beyond

FULL = Setting("full", "full", 1, 4, None, None)
TWICE = Setting("twice", "full", 2, 4, None, None)
PASS = Setting("pass", "one-pass", 16, 16, 1, None)
WITHOUT_REPLACEMENT = Setting("wor", "wor", 1, 256, 1, None)
SUM = Setting("sum", "full", 1, 4, None, None, "shuffled-sum")
REPORTS = Setting("reports", "full", 1, 4, None, None, "shuffled-reports")
TOGETHER = Setting("together", "full", 2, 4, None, None, "pairwise")
STEPS = Setting("steps", "full", 4, 4, None, None)
PARTS = Setting("parts", "one-pass", 4, 8, 4, None)
# Four of the 64 batches of an epoch; every record is in one of the 64.
EPOCH = Setting("epoch", "allocation", 4, 64, 1, None)
# A warm round and then SPIDER's, two phases on parts of their own, a silo's own model.
LATER = [("warm-spider", STEPS), ("localised-mb-sgd", PARTS), ("mr-mtl", TWICE)]
# So large that a bug shows in few trials.
EPSILON, DELTA, TRIALS = 4.0, 1e-5, 1000


def audit(setting=FULL, *, canary="opposite", epsilon=EPSILON, name="mb-sgd", trials=TRIALS):
    some = subject(find(name), setting, epsilon=epsilon, delta=DELTA)
    assert some.target.path == "door"
    return audit_mechanism(some.target, trials=trials, seed=0, label="planted", canary=canary)


@pytest.mark.parametrize("setting", [FULL, WITHOUT_REPLACEMENT, SUM, REPORTS], ids=lambda s: s.name)
def test_without_a_bug_nothing_is_found(setting):
    assert not beyond(audit(setting))


@pytest.mark.parametrize(("name", "setting"), [("mb-sgd", FULL), *LATER], ids=lambda own: getattr(own, "name", own))
def test_noise_for_half_the_sensitivity(monkeypatch, name, setting):
    """Without the bug nothing is found: `tests/audit/test_mechanism.py`."""
    right = door.noise_scale
    monkeypatch.setattr(door, "noise_scale", lambda *terms: right(*terms) / 2)
    assert audit(setting, name=name, trials=2 * TRIALS).violated


@pytest.mark.parametrize(("name", "setting"), LATER, ids=lambda own: getattr(own, "name", own))
def test_a_clip_that_is_not_applied(monkeypatch, name, setting):
    """The check leaves out what is too loud; without it all of that is heard."""
    right = door.quantise

    def unclipped(vectors, clip, limit):
        made = right(vectors, clip, limit)
        return made._replace(formed=4 * made.formed)

    monkeypatch.setattr(door, "quantise", unclipped)
    assert not beyond(audit(setting, name=name))

    def unchecked(stored, present, limit, *, nonnegative):
        return integers.Sums(stored.formed[present].sum(axis=0), {})

    monkeypatch.setattr(door, "checked_sum", unchecked)
    assert audit(setting, name=name).violated


def test_a_sampler_with_half_the_deviation(monkeypatch):
    halved = EXACT._replace(gaussian=lambda size, sigma: discrete_gaussian(size, sigma / 2))
    monkeypatch.setattr(deployed, "EXACT", halved)
    assert audit().violated


def drawn_once(rounds):
    """A sampler that draws for the first of so many rounds, and says the same in the others."""
    drawn, calls = {}, []

    def again(size, sigma):
        calls.append(size)
        if len(calls) % rounds == 1:
            drawn[size] = discrete_gaussian(size, sigma)
        return drawn[size]

    return EXACT._replace(gaussian=again)


def test_noise_used_again_in_every_round(monkeypatch):
    """The hostile server turns what it says around, so that noise that is the same twice cancels."""
    monkeypatch.setattr(deployed, "EXACT", drawn_once(TWICE.rounds))
    assert audit(TWICE).violated


def test_noise_that_remembers_hides_what_it_is_priced_for():
    assert not beyond(audit(PASS, name="dp-ftrl"))


def test_noise_that_is_drawn_once_and_taken_off_again(monkeypatch):
    """A record is in one batch, and later messages have nothing but noise: from them its own noise is known."""
    monkeypatch.setattr(deployed, "EXACT", drawn_once(PASS.rounds))
    assert audit(PASS, name="dp-ftrl").violated


def test_noise_that_is_taken_off_whole(monkeypatch):
    """As a running sum would, which is dearer: the price is that of the square root."""
    monkeypatch.setattr(door, "strategy_of", lambda release: Strategy(PASS.rounds, (ONE,), (ONE,)))
    assert audit(PASS, name="dp-ftrl").violated


def test_a_running_sum_over_silos_whose_noise_comes_again(monkeypatch):
    """Two silos hide each other in two rounds; what they take off of the second is all of its noise."""
    monkeypatch.setattr(deployed, "EXACT", drawn_once(2 * TOGETHER.rounds))
    assert audit(TOGETHER, name="mu2-sgd").violated


def test_noise_that_the_server_knows(monkeypatch):
    monkeypatch.setattr(deployed, "EXACT", EXACT._replace(gaussian=lambda size, sigma: np.full(size, int(sigma))))
    result = audit()
    assert result.violated
    assert result.counts == (result.counts.trials, 0, result.counts.trials)


def test_too_few_coins_of_a_shuffled_sum(monkeypatch):
    right = coins.count_heads
    monkeypatch.setattr(coins, "count_heads", lambda flips, width: right(flips // 4, width))
    assert audit(SUM).violated


def test_reports_that_lie_too_seldom(monkeypatch):
    right = local_reports.threshold
    monkeypatch.setattr(local_reports, "threshold", lambda epsilon: right(2 * epsilon))
    # Few lies are left to count: a thousand trials would miss the bug now and then.
    assert audit(REPORTS, trials=4 * TRIALS).violated


@pytest.mark.parametrize("canary", ["opposite", "silent"])
def test_counts_beside_gradients_hide_what_they_are_priced_for(canary):
    """The count is the same for opposite records; it moves where one of them is silent."""
    assert not beyond(audit(canary=canary, name="quantile-clip"))


def test_counts_without_noise(monkeypatch):
    right = door.DiscreteGaussian._drawn
    monkeypatch.setattr(
        door.DiscreteGaussian,
        "_drawn",
        lambda self, name, size: np.zeros(size, np.int64) if name == "duals" else right(self, name, size),
    )
    assert audit(canary="silent", name="quantile-clip").violated


def test_counts_with_the_noise_of_the_clip_of_gradients(monkeypatch):
    """A count moves by one whatever the clip is, and the clip of gradients is far smaller here."""
    right = door.DiscreteGaussian.scale
    monkeypatch.setattr(
        door.DiscreteGaussian,
        "scale",
        lambda self, name: right(self, name) * (2 * CLIP if name == "duals" else 1.0),
    )
    assert audit(canary="silent", name="quantile-clip").violated


def test_gradients_beside_counts_with_half_their_noise(monkeypatch):
    right = door.DiscreteGaussian.scale
    monkeypatch.setattr(
        door.DiscreteGaussian, "scale", lambda self, name: right(self, name) / (2.0 if name == "params" else 1.0)
    )
    assert audit(name="quantile-clip").violated


@pytest.mark.parametrize("canary", ["opposite", "silent"])
def test_moments_and_gradients_hide_what_they_are_priced_for(canary):
    """Opposite records have the same moments; a silent one has none."""
    assert not beyond(audit(TWICE, canary=canary, name="preconditioned-sgd"))


def test_moments_without_noise(monkeypatch):
    """The first of the two rounds; the sampler is called once in each."""
    calls = []

    def second_only(size, sigma):
        calls.append(size)
        return discrete_gaussian(size, sigma) if len(calls) % TWICE.rounds == 0 else np.zeros(size, np.int64)

    monkeypatch.setattr(deployed, "EXACT", EXACT._replace(gaussian=second_only))
    assert audit(TWICE, canary="silent", name="preconditioned-sgd").violated


def test_a_batch_that_is_not_secret(monkeypatch):
    """Amplification is claimed, but the record is in every batch."""

    def known(sampling, *, size, **rest):
        return SecretBatch(np.arange(size), np.ones(size, bool))

    monkeypatch.setattr(door, "secret_batch", known)
    assert audit(WITHOUT_REPLACEMENT, epsilon=1.0).violated


def test_a_warm_round_without_noise(monkeypatch):
    """The first of the four rounds; the sampler is called once in each."""
    calls = []

    def later_only(size, sigma):
        calls.append(size)
        return discrete_gaussian(size, sigma) if len(calls) % STEPS.rounds != 1 else np.zeros(size, np.int64)

    monkeypatch.setattr(deployed, "EXACT", EXACT._replace(gaussian=later_only))
    assert audit(STEPS, name="warm-spider").violated


def test_a_warm_round_that_is_not_paid_for():
    """The budget of SPIDER's one round is claimed for both."""
    target = subject(find("warm-spider"), TWICE, epsilon=8.0, delta=DELTA).target
    assert target.algorithm.schedule == ("warm", "gradient")
    terms = {"trials": 3 * TRIALS, "seed": 0, "label": "planted"}
    assert not beyond(audit_mechanism(target, **terms))
    assert audit_mechanism(target, claim=target.claim("gradient"), **terms).violated


def test_a_part_of_the_records_that_two_phases_read(monkeypatch):
    """Parts begin where they should, and the price is that of one phase; or all of them begin with the first."""
    terms = {"name": "localised-mb-sgd", "epsilon": 8.0, "trials": 3 * TRIALS}
    assert not beyond(audit(PARTS, **terms))
    monkeypatch.setattr(door, "pass_position", lambda *terms: 0)
    assert audit(PARTS, **terms).violated


def epoch():
    """The audit of an epoch whose price counts on a secret place; a known one would cost far more."""
    target = subject(find("mb-sgd"), EPOCH, epsilon=1.0, delta=DELTA).target
    [event] = target.deployed.own.events
    assert is_amplified(EPOCH.records, event.noise_multiplier)
    known = price([replace(event, sampling="one-pass", capacity=None)], delta=DELTA)
    assert target.claim(None).epsilon == pytest.approx(1.0, rel=2e-3)
    assert known.epsilon > 5.0
    return audit_mechanism(target, trials=4 * TRIALS, seed=0, label="planted")


def test_a_secret_place_in_an_epoch_hides_what_it_is_priced_for():
    assert not beyond(epoch())


def test_an_epoch_with_the_record_in_every_batch(monkeypatch):
    def every(sampling, *, count, **rest):
        return SecretBatch(np.arange(count), np.ones(count, bool))

    monkeypatch.setattr(door, "secret_batch", every)
    assert epoch().violated


def test_an_epoch_whose_places_are_known(monkeypatch):
    """Each record is in one batch, as it should be, and the same one in every study."""
    monkeypatch.setattr(door, "allotted", lambda seed, epoch, count, batches: np.arange(count) % batches)
    assert epoch().violated


def test_an_epoch_with_an_eighth_of_its_noise(monkeypatch):
    """In most studies the record is in no round that is heard, and half of the noise would show in many trials only."""
    right = door.noise_scale
    monkeypatch.setattr(door, "noise_scale", lambda *terms: right(*terms) / 8)
    assert epoch().violated


def test_a_budget_per_round_that_was_meant_for_all_rounds():
    settings = [Setting("rounds", "full", rounds, 4, None, None) for rounds in (1, 4)]
    one, four = (
        subject(find("mb-sgd"), own, epsilon=e, delta=DELTA) for own, e in zip(settings, (4, 9.9), strict=True)
    )
    [event], [another] = (some.target.deployed.own.events for some in (one, four))
    assert another.noise_multiplier == pytest.approx(event.noise_multiplier, rel=0.1)
    claim = price([event], delta=DELTA)
    assert audit_mechanism(four.target, trials=TRIALS, seed=0, label="planted", claim=claim).violated


NETWORK = Objective(mlp((3, 4, 1)), squared())


def moved(tries=200, *, name="prox-svrg", kind="difference", search=audit_hostile_points):
    """The most that the door's sum was moved, in units of its price, by points that are alike."""
    entry = find(name)
    problem = Problem(NETWORK, smoothness=1.0, lipschitz=1.0, radius=1.0)
    given = parameters_for(entry, Setting("full batch", "full", 4, 3, None, None))
    built = entry.build(problem, **given, noise_multiplier=2.0)
    found = {result.kind: result for result in search(built, NETWORK, 3, seed=0, tries=tries)}
    return found[kind]


def test_the_door_as_it_ships_is_never_moved_beyond_its_price():
    assert 0.99 < moved().largest <= 1.0


def unchecked(monkeypatch):
    """Take the check of norms out of the sum, and leave it where integers are made."""
    right, norms = door.checked_sum, integers.layer_norms

    def added(stored, present, limit, *, nonnegative):
        with monkeypatch.context() as only_here:
            only_here.setattr(integers, "layer_norms", lambda left, right: np.zeros(left.shape[1]))
            return right(stored, present, limit, nonnegative=nonnegative)

    monkeypatch.setattr(door, "checked_sum", added)
    assert integers.layer_norms is norms


def test_a_sum_that_keeps_every_record(monkeypatch):
    """The check is what the promise rests on: broken integers alone do not break it."""
    right = door.quantise

    def too_loud(vectors, clip, limit):
        made = right(vectors, clip, limit)
        louder = {n: own._replace(right=np.clip(2 * own.right, -(2**18), 2**18)) for n, own in made.layers.items()}
        return made._replace(layers=louder)

    monkeypatch.setattr(door, "quantise", too_loud)
    assert moved().largest <= 1.0
    unchecked(monkeypatch)
    assert moved().violated


def test_added_numbers_that_are_not_those_that_were_checked(monkeypatch):
    right = integers._added
    monkeypatch.setattr(integers, "_added", lambda left, values, kept: right(2 * left, values, kept))
    assert moved().violated


def test_a_batch_that_is_placed_by_content(monkeypatch):
    """An engine may say other things in other slots, if records keep theirs; sorting them moves all others."""
    plain, right = door.Engine.stored, door.Door.release

    def by_slot(self, work, records, present):
        for blocks, there in plain(self, work, records, present):
            signs = np.where(np.arange(len(there)) % 2, -1, 1).astype(np.float32)[:, None]
            turned = {
                name: own._replace(layers={n: f._replace(right=signs * f.right) for n, f in own.layers.items()})
                for name, own in blocks.items()
            }
            yield turned, there

    def placed(self, work, batch, mechanism):
        held, order = self.records, np.argsort(self.records["y"], kind="stable")
        self.records = {name: column[order] for name, column in held.items()}
        try:
            return right(self, work, batch, mechanism)
        finally:
            self.records = held

    monkeypatch.setattr(door.Engine, "stored", by_slot)
    assert moved().largest <= 1.0
    monkeypatch.setattr(door.Door, "release", placed)
    assert moved().violated


SCALED = {"name": "preconditioned-sgd", "search": audit_extremes}


@pytest.mark.parametrize("kind", ["gradient", "moments"])
def test_no_scale_that_a_server_says_moves_a_record_beyond_its_price(kind):
    assert 0.99 < moved(kind=kind, **SCALED).largest <= 1.0


def test_gradients_that_are_clipped_before_they_are_rescaled(monkeypatch):
    right = door.DiscreteGaussian.sums

    def rescaled_after(self, work, records, present, clips):
        total = right(self, work._replace(scale=jax.tree.map(np.ones_like, work.scale)), records, present, clips)[""]
        scale = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(work.scale)]).astype(np.float64)
        units = np.clip(np.rint(total.formed * scale), -(2.0**62), 2.0**62).astype(np.int64)
        return {"": integers.Sums(units, {})}

    monkeypatch.setattr(door.DiscreteGaussian, "sums", rescaled_after)
    assert moved(kind="gradient", **SCALED).largest > 1e3


def test_moments_that_have_a_sign(monkeypatch):
    """Their noise is that of rows which are not negative. The door leaves others out, unless that check is gone."""
    plain = door.Engine.stored

    def signed(self, work, records, present):
        signs = np.where(records["y"] < 0, -1, 1).astype(np.float32)[:, None]
        for blocks, there in plain(self, work, records, present):
            yield {name: own._replace(formed=signs * own.formed) for name, own in blocks.items()}, there

    monkeypatch.setattr(door.Engine, "stored", signed)
    assert moved(kind="moments", **SCALED).largest <= 1.0
    right = door.checked_sum
    monkeypatch.setattr(door, "checked_sum", lambda *given, nonnegative: right(*given, nonnegative=False))
    assert moved(kind="moments", **SCALED).largest > 1.4


def test_a_fused_twin_of_what_was_clipped(monkeypatch):
    """As version 0.1 did it: the norm is that of a difference of rounded gradients, and what is added is rounded once.

    A compiler does that where it fuses a product with the sum that it goes into. At equal points the norm is zero.
    """

    right = door.DiscreteGaussian.sums

    def fused(self, work, records, present, clips):
        query = self.engine._silo.query
        if len(query.points(work)) < 2:
            return right(self, work, records, present, clips)
        new, old = (np.asarray(_rows(query, point, records)) for point in query.points(work))
        with jax.enable_x64(True):
            wide = [{n: jnp.asarray(v, jnp.float64) for n, v in records.items()}]
            point = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), jnp.float64), query.points(work)[0])
            exact = np.asarray(_rows(query, point, *wide))
        with np.errstate(all="ignore"):
            norms = np.linalg.norm((new - old).astype(np.float64), axis=1, keepdims=True)
            clipped = (exact - old) * np.minimum(1.0, clips[""] / np.maximum(norms, 1e-300))
            units = np.nan_to_num(clipped.sum(axis=0) * (integers.BOUND / (clips[""] or 1.0)), posinf=0.0, neginf=0.0)
        return {"": integers.Sums(np.clip(np.rint(units), -(2.0**62), 2.0**62).astype(np.int64), {})}

    monkeypatch.setattr(door.DiscreteGaussian, "sums", fused)
    assert moved(tries=30).largest > 1e3


def _rows(query, point, records):
    found = jax.vmap(lambda record: jax.grad(query.objective.loss)(point, record))(records)
    return jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(found)], axis=1)


def test_a_record_that_is_not_finite_leaks(monkeypatch):
    """Without the rule that what is not finite counts as nothing, a cast makes numbers of it; the check drops them."""
    monkeypatch.setattr(integers, "_finite", lambda vectors: (vectors, np.ones(len(vectors.formed), bool)))
    assert not beyond(audit(canary="overflow"))
