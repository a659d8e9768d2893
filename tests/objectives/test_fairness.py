"""The ERMI term: its maximum is the divergence, its gradients are known, its sensitivities are bounds and attained."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.errors import TacitError
from tacit.objectives import ermi, linear, mlp

CASES = {
    "binary, two groups": (linear(3, 1), 2, 2),
    "three classes, four groups": (linear(3, 3), 3, 4),
    "perceptron": (mlp((3, 5, 3)), 3, 2),
}


def data(classes, groups, n=40, seed=0):
    rng = np.random.default_rng(seed)
    s = np.concatenate([np.arange(groups), rng.integers(0, groups, n)] * classes)
    y = np.concatenate([np.full(n + groups, c) for c in range(classes)])
    keep = rng.permutation(len(s))[: len(s) - 7]
    keep = np.concatenate([keep, [c * (n + groups) + r for c in range(classes) for r in range(groups)]])
    x = rng.normal(size=(len(keep), 3)) + s[keep][:, None] - 0.5 * y[keep][:, None]
    return {"x": jnp.asarray(x), "y": jnp.asarray(y[keep]), "s": jnp.asarray(s[keep])}


def shares(s, groups):
    return np.bincount(np.asarray(s), minlength=groups) / len(s)


def frequencies(records, notion, classes, groups):
    s, y = np.asarray(records["s"]), np.asarray(records["y"])
    if notion == "demographic-parity":
        return shares(s, groups)
    if notion == "equal-opportunity":
        return shares(s[y == 1], groups)
    return [shares(s[y == c], groups) for c in range(classes)]


def divergence(chances, s, groups):
    """The chi-squared divergence of a prediction drawn from ``chances`` and the group, from their joint table."""
    joint = np.stack([np.asarray(chances)[s == r].sum(axis=0) for r in range(groups)]) / len(s)
    return (joint**2 / (joint.sum(axis=0, keepdims=True) * joint.sum(axis=1, keepdims=True))).sum() - 1


def point(model, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(scale * rng.normal(size=leaf.shape)), model.init(jax.random.key(0)))


def build(case, notion, records, floor=1e-3):
    model, classes, groups = CASES[case]
    return ermi(model, classes, frequencies(records, notion, classes, groups), notion=notion, floor=floor)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("notion", ["demographic-parity", "equalized-odds", "equal-opportunity"])
def test_the_maximum_over_duals_is_the_divergence(case, notion):
    with jax.enable_x64(True):
        model, classes, groups = CASES[case]
        records = data(classes, groups)
        term, params = build(case, notion, records), point(model)
        chances = np.asarray(term.probabilities(params, records["x"]))
        s, y = np.asarray(records["s"]), np.asarray(records["y"])
        within = {c: divergence(chances[y == c], s[y == c], groups) * (y == c).mean() for c in range(classes)}
        expected = {
            "demographic-parity": divergence(chances, s, groups),
            "equalized-odds": sum(within.values()),
            "equal-opportunity": within[1],
        }[notion]
        mean = jax.jit(lambda duals: term.values(params, duals, records).mean())
        best = term.best(params, records)
        assert abs(float(mean(best)) - expected) < 1e-12
        assert expected > 1e-3
        assert float(jnp.abs(jax.grad(mean)(best)).max()) < 1e-12
        share = {c: (y == c).mean() for c in range(classes)}
        met = 1.0 if notion == "demographic-parity" else min(share.values())
        for seed in range(5):
            step = np.random.default_rng(seed).normal(size=best.shape)
            fall = float(mean(best) - mean(best + step))
            assert fall >= 0.5 * term.concavity * met * (step**2).sum() * (1 - 1e-9)


@pytest.mark.parametrize("notion", ["demographic-parity", "equalized-odds", "equal-opportunity"])
def test_independent_predictions_have_no_divergence(notion):
    with jax.enable_x64(True):
        records = data(2, 2)
        term = build("binary, two groups", notion, records)
        constant = {"linear": {"w": jnp.zeros((3, 1)), "b": jnp.asarray([0.7])}}
        assert abs(float(term.values(constant, term.best(constant, records), records).mean())) < 1e-12


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("notion", ["demographic-parity", "equalized-odds", "equal-opportunity"])
def test_gradients_are_the_analytic_ones(case, notion):
    with jax.enable_x64(True):
        model, classes, groups = CASES[case]
        records = data(classes, groups, n=4)
        term, params = build(case, notion, records), point(model)
        duals = jnp.asarray(np.random.default_rng(1).normal(size=term.init().shape))
        by_params, by_duals = jax.jit(
            jax.vmap(jax.grad(term.value, argnums=(0, 1)), in_axes=(None, None, 0)),
        )(params, duals, records)
        chances, table = np.asarray(term.probabilities(params, records["x"])), np.asarray(term.frequencies)
        _, pull = jax.vjp(lambda p: term.probabilities(p, records["x"]), params)
        cotangent = np.zeros_like(chances)
        for i, (s, y) in enumerate(zip(np.asarray(records["s"]), np.asarray(records["y"]), strict=True)):
            expected = np.zeros(duals.shape)
            if notion != "equal-opportunity" or y == 1:
                c = y if notion == "equalized-odds" else 0
                own = np.asarray(duals)[c]
                expected[c] = -2 * own * chances[i]
                expected[c, s] += 2 * chances[i] / np.sqrt(table[c, s])
                cotangent[i] = 2 * own[s] / np.sqrt(table[c, s]) - (own**2).sum(axis=0)
            np.testing.assert_allclose(by_duals[i], expected, atol=1e-12)
        total = jax.tree.map(lambda leaf: leaf.sum(axis=0), by_params)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-10), total, pull(jnp.asarray(cotangent))[0])


def gaps(term, params, duals, record, groups):
    """The largest change of each gradient over all pairs of groups, for many points and one record each."""

    def at(params, duals, record, s):
        by_params, by_duals = jax.grad(term.value, argnums=(0, 1))(params, duals, {**record, "s": jnp.asarray(s)})
        return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(by_params)]), by_duals.ravel()

    batched = jax.jit(jax.vmap(at, in_axes=(0, 0, 0, None)))
    found = [batched(params, duals, record, s) for s in range(groups)]
    pairs = [(a, b) for a in range(groups) for b in range(a)]
    return [max(float(jnp.linalg.norm(found[a][k] - found[b][k], axis=1).max()) for a, b in pairs) for k in (1, 0)]


SENSITIVE = {
    "parity": (linear(3, 1), 2, (0.2, 0.8), "demographic-parity"),
    "parity, multi-class": (linear(3, 3), 3, (0.1, 0.6, 0.3), "demographic-parity"),
    "odds": (linear(3, 1, bias=False), 2, ((0.4, 0.6), (0.9, 0.1)), "equalized-odds"),
    "odds, multi-class": (linear(3, 3), 3, ((0.5, 0.5), (0.3, 0.7), (0.15, 0.85)), "equalized-odds"),
    "opportunity": (linear(3, 2), 2, (0.25, 0.35, 0.4), "equal-opportunity"),
}


@pytest.mark.parametrize("name", SENSITIVE)
@pytest.mark.parametrize("box", [False, True])
def test_sensitivity_to_the_attribute_is_never_exceeded_and_attained(name, box):
    model, classes, table, notion = SENSITIVE[name]
    radius, norm, n = 1.5, 2.0, 300
    with jax.enable_x64(True):
        term = ermi(model, classes, table, notion=notion, floor=0.01)
        bound = term.sensitivity(radius=radius, jacobian=term.jacobian_bound(norm), box=box)
        rng = np.random.default_rng(0)
        x = rng.normal(size=(n, 3))
        x *= norm / np.linalg.norm(x, axis=1, keepdims=True)
        record = {"x": jnp.asarray(x), "y": jnp.asarray(rng.integers(0, classes, n))}
        params = jax.tree.map(
            lambda leaf: jnp.asarray(
                rng.normal(size=(n, *leaf.shape)) * rng.choice([0, 1, 100], (n,) + (1,) * leaf.ndim)
            ),
            model.init(jax.random.key(0)),
        )
        duals = rng.normal(size=(n, *term.init().shape))
        lengths = np.sqrt((duals**2).sum(axis=(1, 2, 3), keepdims=True))
        duals = radius * (np.sign(duals) if box else duals / lengths)
        seen = gaps(term, params, jnp.asarray(duals), record, len(term.frequencies[0]))
        worst = gaps(term, *adversary(term, radius, norm, box), len(term.frequencies[0]))
        assert max(seen[0], worst[0]) <= bound.duals * (1 + 1e-9)
        assert max(seen[1], worst[1]) <= bound.params * (1 + 1e-9)
        assert worst[0] > 0.999 * bound.duals
        # In a box with three classes the signs cannot lie along the steepest direction of the softmax.
        attained = 0.999 if classes == 2 or not box else np.sqrt(2 / 3) * 0.999
        assert worst[1] > attained * bound.params


def adversary(term, radius, norm, box):
    """A confident model, steepest in the duals, and an undecided one, steepest in the parameters; the rarest groups."""
    table = np.asarray(term.frequencies)
    condition = int(np.argmax([sum(1 / np.sort(row)[:2]) for row in table]))
    first, second = np.argsort(table[condition])[:2]
    scale = 1 / np.sqrt(table[condition, [first, second]])
    share = np.ones(2) if box else scale / np.linalg.norm(scale) / np.sqrt(2)
    duals = np.zeros((2, *term.init().shape))
    duals[:, condition, first, :2] = radius * share[0] * np.asarray([1.0, -1.0])
    duals[:, condition, second, :2] = -radius * share[1] * np.asarray([1.0, -1.0])
    x = np.zeros((2, 3))
    x[:, 0] = norm
    y = condition if term.notion == "equalized-odds" else 1
    layer = {key: np.zeros((2, *leaf.shape)) for key, leaf in term.model.init(jax.random.key(0))["linear"].items()}
    layer["w"][0, 0, 0] = 1e3
    if term.classes == 3:  # undecided between the first two
        layer["w"][1, 0, 2] = -1e3
    record = {"x": jnp.asarray(x), "y": jnp.full(2, y)}
    return {"linear": jax.tree.map(jnp.asarray, layer)}, jnp.asarray(duals), record


def test_what_is_refused():
    model = linear(3, 3)
    with pytest.raises(TacitError, match="3 rows"):
        ermi(model, 3, (0.5, 0.5), notion="equalized-odds")
    with pytest.raises(TacitError, match="above 0"):
        ermi(model, 3, (1.0, 0.0))
    with pytest.raises(TacitError, match="floor"):
        ermi(model, 3, (0.5, 0.5), floor=0.34)
    with pytest.raises(TacitError, match="outputs"):
        ermi(model, 2, (0.5, 0.5)).probabilities(model.init(jax.random.key(0)), jnp.zeros((1, 3)))
    with pytest.raises(TacitError, match="linear model"):
        ermi(mlp((3, 2, 2)), 2, (0.5, 0.5)).jacobian_bound(1.0)
