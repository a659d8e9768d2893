"""Models of torch, Flax and Equinox: they train as ours do, in simulation and at the door; what cannot is refused."""

import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx
from torch import nn

import tacit
from tacit.errors import TacitError
from tacit.models import from_equinox, from_flax, from_torch, load_model, to_torch
from tacit.objectives import Loss, Objective, Problem, mlp, softmax, squared
from tacit.plans.catalogue import find
from tacit.privacy.plan import Budget
from tacit.silo import enrol
from tacit.silo.batches import SecretBatch
from tacit.silo.door import NO_PAST, Door, Engine, no_noise
from tacit.silo.gradients import is_outside
from tacit.simulate.compiled import simulate
from tacit.simulate.loop import debug
from tests.models.brought import NETWORKS, largest, tables

KEY = jax.random.key(3)
TERMS = {"step_size": 0.5, "clip_norm": 0.4, "batch_size": None, "sampling": "full"}
ALGORITHMS = {
    "mb-sgd": {"num_rounds": 6, "output": "last"},
    "prox-spider": {"num_rounds": 6, "phase_length": 3, "difference_slope": 4.0},
}
FORMS = [
    (network, form)
    for network, forms in (("mlp", ("torch", "linen", "nnx", "equinox")), ("cnn", ("torch", "linen", "nnx", "equinox")))
    for form in forms
]


def pair(network, form):
    """Ours and theirs, with the start of ours and some records."""
    make, shape = NETWORKS[network]
    made = make()
    first = made["tacit"].problem.objective.init(KEY)
    return made["tacit"], made[form], jax.tree.map(np.asarray, first), tables(shape)


@pytest.mark.parametrize(
    ("network", "form", "name"), [*((*own, "mb-sgd") for own in FORMS), ("mlp", "torch", "prox-spider")]
)
def test_a_simulation_without_noise_takes_the_path_of_ours(network, form, name):
    ours, theirs, first, data = pair(network, form)
    found = []
    for own in (ours, theirs):
        algorithm = find(name).build(own.problem, **TERMS, noise_multiplier=0.0, **ALGORITHMS[name])
        end = simulate(algorithm, own.theirs(first), enrol(data), key=KEY, noise="each").params
        found.append(own.ours(end))
    assert largest(*found) < 1e-4
    assert largest(found[0], first) > 1e-2


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(("network", "form"), FORMS)
def test_the_door_takes_the_path_of_ours(network, form, name):
    ours, theirs, first, data = pair(network, form)
    found = [own.ours(through_doors(own.problem, own.theirs(first), data, name)) for own in (ours, theirs)]
    assert largest(*found) < 1e-4
    assert largest(found[0], first) > 1e-2


def through_doors(problem, first, data, name):
    """Every round through the door of each silo, without noise: the output."""
    algorithm = find(name).build(problem, **TERMS, noise_multiplier=1.0, **ALGORITHMS[name])
    doors = {
        kind: [Door(part.silo, table, silo_index=i, form=False) for i, table in enumerate(data)]
        for kind, part in algorithm.rounds.items()
    }
    state, everybody = algorithm.init(first), SecretBatch(np.arange(20), np.ones(20, bool))
    for kind in algorithm.schedule:
        part = algorithm.rounds[kind]
        broadcast = part.server.ask(state)
        said = [
            door.answer(broadcast, (), batches=[everybody] * part.silo.local_steps, sampler=no_noise, past=NO_PAST)
            for door in doors[kind]
        ]
        mean = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *(one.message for one in said))
        state = part.server.tell(state, mean)
    return algorithm.output(state)


def test_the_plain_loop_is_the_compiled_program_with_a_torch_module():
    _, theirs, first, data = pair("mlp", "torch")
    algorithm = find("mb-sgd").build(theirs.problem, **TERMS, noise_multiplier=0.3, num_rounds=3)
    start = theirs.theirs(first)
    loop = debug(algorithm, start, data, key=KEY).params
    assert largest(loop, simulate(algorithm, start, enrol(data), key=KEY, noise="each").params) < 1e-5


@pytest.mark.parametrize(("network", "form"), FORMS)
def test_prices_are_those_of_ours(network, form):
    ours, theirs, _, data = pair(network, form)
    terms = {"budget": Budget(epsilon=4.0, delta=1e-4), "clip_norm": 0.4, "measure_every": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fits = [
            tacit.fit(own.problem, data, tacit.mb_sgd(step_size=0.1, num_rounds=2), **terms) for own in (ours, theirs)
        ]
    prices = [[silo.price for silo in fit.silos] for fit in fits]
    assert prices[0] == prices[1]


class Engines:
    """A query of one gradient, with the engine that the door has and the one that goes through jax."""

    def __init__(self, module, cost=None):
        problem = Problem(from_torch(module, cost or softmax()))
        self.silo = find("mb-sgd").build(problem, **TERMS, noise_multiplier=1.0, num_rounds=1).rounds["gradient"].silo
        self.params = problem.objective.init(KEY)

    def vectors(self, data, engine=None):
        engine = engine or Engine(self.silo, form=False)
        vectors = next(engine.stored(self.params, data, np.ones(len(data["y"]), bool)))[0][""]
        return np.concatenate([vectors.formed, *(side[0] for own in vectors.layers.values() for side in own)], axis=1)


def test_the_door_asks_torch_itself_and_says_what_jax_says():
    torch.manual_seed(0)
    own = Engines(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3)))
    assert is_outside(own.silo.query)
    data = tables((6,))[0]
    plain = jax.vmap(lambda record: own.silo.query(own.params, record))(data)
    joined = np.concatenate([np.asarray(leaf).reshape(20, -1) for leaf in jax.tree.leaves(plain)], axis=1)
    engine = Engine(own.silo, form=True)
    np.testing.assert_allclose(own.vectors(data, engine), joined, atol=1e-6)


def test_a_vector_at_the_door_depends_on_its_record_and_slot_alone():
    torch.manual_seed(0)
    own = Engines(nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.LayerNorm(40), nn.Linear(40, 3)))
    assert Engine(own.silo, form=False).blocks(own.params, tables((6,))[0])[""].factored == ("0", "3")
    data, rng = tables((6,))[0], np.random.default_rng(1)
    before = own.vectors(data)
    for trial in range(5):
        others = {
            "x": (10.0**trial * rng.normal(size=(20, 6))).astype(np.float32),
            "y": rng.integers(0, 3, 20).astype(np.int32),
        }
        for slot in (0, 7, 19):
            changed = {name: column.copy() for name, column in others.items()}
            for name in changed:
                changed[name][slot] = data[name][slot]
            np.testing.assert_array_equal(own.vectors(changed)[slot], before[slot])


def test_a_million_parameters_are_never_formed_for_a_record():
    own = Engines(nn.Sequential(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 200), nn.ReLU(), nn.Linear(200, 10)))
    data = {"x": np.zeros((4, 784), np.float32), "y": np.arange(4, dtype=np.int32)}
    layout = Engine(own.silo, form=False).blocks(own.params, data)[""]
    assert sum(leaf.size for leaf in jax.tree.leaves(own.params)) > 9.8e5
    assert layout.width == 784 + 1000 + 1000 + 200 + 200 + 10 + 3
    vectors = next(Engine(own.silo, form=False).stored(own.params, data, np.ones(4, bool)))[0][""]
    assert vectors.formed.shape == (4, 0)


def test_weights_that_are_used_twice_are_not_left_in_factors():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(6, 40), nn.Linear(40, 3)

        def forward(self, x):
            hidden = torch.tanh(self.body(x))
            return self.head(hidden) + hidden @ self.body.weight[:, :3]

    torch.manual_seed(0)
    own, data = Engines(Tied()), tables((6,))[0]
    assert Engine(own.silo, form=False).blocks(own.params, data)[""].factored == ("head",)


def test_indices_out_of_range_do_not_fail():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = nn.Embedding(10, 4), nn.Linear(4, 3)

        def forward(self, x):
            return self.out(self.table(x.long()).mean(1))

    own = Engines(Words())
    inside, beyond = np.full((2, 5), 9, np.float32), np.full((2, 5), 1e9, np.float32)
    y = np.array([0, 1], np.int32)
    np.testing.assert_array_equal(own.vectors({"x": inside, "y": y}), own.vectors({"x": beyond, "y": y}))


def fitted(objective, data, **changes):
    terms = {"budget": None, "measure_every": 0, **changes}
    return tacit.fit(Problem(objective), data, tacit.mb_sgd(step_size=0.5, num_rounds=3, output="last"), **terms)


def test_trained_weights_move_and_frozen_ones_do_not():
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    module[1].running_mean += 0.3
    for layer in module[:2]:
        layer.requires_grad_(False)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    fit = fitted(from_torch(module.eval(), softmax()), tables((6,)))
    assert {name: set(layer) for name, layer in fit.params.items()} == {"3": {"weight", "bias"}}
    after = to_torch(module, fit.params).state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"3.weight", "3.bias"}
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    x = tables((6,))[0]["x"]
    expected = to_torch(module, fit.params)(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(fit.model.outputs(x), expected, atol=1e-5)


def test_a_bundle_of_a_torch_model_is_loaded_with_its_model(tmp_path):
    objective = from_torch(nn.Linear(6, 3), softmax())
    fit = fitted(objective, tables((6,)))
    again = load_model(fit.save(tmp_path / "model"), model=objective.model)
    x = tables((6,))[0]["x"]
    np.testing.assert_array_equal(again.predict(x), fit.predict(x))


def test_a_loss_in_torch_is_the_loss_of_ours():
    torch.manual_seed(0)
    module, data = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), tables((6,))
    ends = [
        fitted(from_torch(module, loss), data).params for loss in (softmax(), nn.CrossEntropyLoss(reduction="none"))
    ]
    assert largest(*ends) < 1e-5
    vectors = [Engines(module, loss).vectors(data[0]) for loss in (None, nn.CrossEntropyLoss(reduction="none"))]
    np.testing.assert_allclose(*vectors, atol=1e-6)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.BatchNorm1d(8), r"layer 'inner\.1' \(BatchNorm1d\) mixes .*nn\.GroupNorm"),
        (nn.Dropout(0.1), r"layer 'inner\.1' \(Dropout\) draws random numbers"),
        (nn.LSTM(8, 8), r"layer 'inner\.1' \(LSTM\) has no gradients record by record"),
        (nn.InstanceNorm1d(8, track_running_stats=True), r"layer 'inner\.1' .*track_running_stats=False"),
        (nn.LazyLinear(3), r"layer 'inner\.1' .*no weights yet"),
    ],
)
def test_layers_that_cannot_be_bounded_are_refused_by_name(layer, words):
    module = nn.Sequential()
    module.add_module("inner", nn.Sequential(nn.Linear(6, 8), layer))
    with pytest.raises(TacitError, match=words):
        from_torch(module, softmax())


class Odd(nn.Module):
    """A module that is wrong in a way that no layer tells."""

    def __init__(self, how):
        super().__init__()
        self.how, self.linear, self.calls = how, nn.Linear(6, 3), 0

    def forward(self, x):
        self.calls += 1
        if self.how == "mixes":
            x = x - x.mean(0)
        if self.how == "draws":
            x = x + torch.rand(())
        if self.how == "counts":
            x = x * self.calls
        return self.linear(x)


@pytest.mark.parametrize(
    ("how", "words"), [("mixes", "mixes records"), ("draws", "random operation"), ("counts", "twice")]
)
def test_modules_that_mix_draw_or_count_are_found_out(how, words):
    with pytest.raises(TacitError, match=words):
        fitted(from_torch(Odd(how), softmax()), tables((6,)))


def test_other_mistakes_are_named():
    with pytest.raises(TacitError, match=r"Expected a torch\.nn\.Module, got Model"):
        from_torch(mlp((6, 3)), softmax())
    with pytest.raises(TacitError, match="all of this one are frozen"):
        from_torch(nn.Linear(6, 3).requires_grad_(False), softmax())
    with pytest.raises(TacitError, match='reduction="none"'):
        fitted(from_torch(nn.Linear(6, 3), nn.CrossEntropyLoss()), tables((6,)))
    with pytest.raises(TacitError, match="row of outputs"):
        fitted(from_torch(Tall(), softmax()), tables((6,)))
    with pytest.raises(TacitError, match=r"Expected parameters \['bias', 'weight'\]"):
        to_torch(nn.Linear(6, 3), {"": {"weight": np.zeros((3, 6))}})
    objective = from_torch(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 1)), squared())
    with pytest.raises(TacitError, match="none in the features"):
        jax.grad(lambda x: objective.model.apply(objective.init(KEY), x, None).sum())(jnp.zeros((2, 6)))


class Tall(nn.Module):
    """Three axes come out of it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        return self.linear(x)[:, None]


def test_flax_and_equinox_modules_that_keep_state_are_refused():
    import equinox

    class Normed(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(3)(linen.BatchNorm(use_running_average=False, name="norm")(x))

    with pytest.raises(TacitError, match="layer 'norm' keeps batch_stats"):
        from_flax(Normed(), softmax(), features=(6,))
    with pytest.raises(TacitError, match=r"features=\(20,\)"):
        from_flax(Normed(), softmax())

    class Layers(nnx.Module):
        def __init__(self):
            self.norm = nnx.BatchNorm(6, rngs=nnx.Rngs(0))

        def __call__(self, x):
            return self.norm(x)

    with pytest.raises(TacitError, match="layer 'norm' keeps BatchStat"):
        from_flax(Layers(), softmax())
    norm = equinox.nn.Sequential([equinox.nn.Linear(6, 3, key=KEY), equinox.nn.BatchNorm(3, "batch", mode="batch")])
    with pytest.raises(TacitError, match=r"\(BatchNorm\) mixes records"):
        from_equinox(norm, softmax())
    with pytest.raises(TacitError, match="Expected a module of flax"):
        from_flax(mlp((6, 3)), softmax())


def test_a_custom_loss_of_ours_works_with_a_torch_module():
    huber = Loss(lambda outputs, targets: jnp.sqrt(1 + (outputs[:, 0] - targets) ** 2) - 1)
    data = [{**table, "y": table["x"][:, 0]} for table in tables((6,))]
    fit = fitted(Objective(from_torch(nn.Linear(6, 1), huber).model, huber), data)
    assert fit.params[""]["weight"].shape == (1, 6)


def test_a_record_that_a_layer_reads_itself_is_not_asked_for_again():
    torch.manual_seed(0)
    for module, direct, whole in (
        (nn.Linear(6, 3), {""}, ""),
        (nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), {"1"}, "1"),
        (nn.Sequential(nn.Linear(6, 3, bias=False)), {"0"}, "0"),
        (nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), {"0"}, None),
        (nn.Sequential(nn.Linear(6, 3), nn.Tanh()), {"0"}, None),
        (nn.Sequential(nn.Linear(6, 3), nn.ReLU(inplace=True)), {"0"}, None),
        (nn.Sequential(nn.Tanh(), nn.Linear(6, 3)), set(), None),
        (nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3)), set(), None),
    ):
        objective = from_torch(module, softmax())
        found = objective.model.outside.dense_layers((6,), np.dtype("float32"))
        assert (found.direct, found.whole) == (direct, whole)
        params, data = objective.init(KEY), tables((6,))[0]
        expected = module(torch.from_numpy(data["x"].copy())).detach().numpy()
        np.testing.assert_allclose(objective.model.apply(params, data["x"], None), expected, atol=1e-5)
        cotangents = np.random.default_rng(1).normal(size=(20, 3)).astype(np.float32)
        asked = objective.model.outside.factors(params, jnp.asarray(data["x"]), jnp.asarray(cotangents))
        told = objective.model.outside.pulled(params, data["x"], tuple(found.sizes))[1](cotangents)
        assert asked.inputs.keys() == told.inputs.keys()
        for name in told.inputs:
            np.testing.assert_allclose(asked.inputs[name], told.inputs[name], atol=1e-6)
            np.testing.assert_allclose(asked.cotangents[name], told.cotangents[name], atol=1e-6)


@pytest.mark.parametrize("library", ["torch", "flax", "equinox"])
def test_a_library_that_is_missing_is_named_with_what_installs_it(library):
    code = (
        f"import sys\nsys.modules[{library!r}] = None\nfrom tacit.errors import TacitError\n"
        f"try:\n    from tacit.models import from_{library}\n"
        "except TacitError as error:\n    print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert f"pip install 'tacit[{library}]'" in said


class Normalises(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        return nn.functional.batch_norm(self.linear(x), None, None, training=True)


def test_errors_speak_of_the_users_own_module():
    import equinox

    with pytest.raises(TacitError, match=r"Run your module on torch\.from_numpy\(x\[:2\]\)"):
        fitted(from_torch(nn.Linear(5, 3), softmax()), tables((6,)))
    with pytest.raises(TacitError, match="normalises over the batch"):
        fitted(from_torch(Normalises(), softmax()), tables((6,)))
    spectral = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)))
    with pytest.raises(TacitError, match="has a spectral norm"):
        from_torch(spectral, softmax())
    with pytest.raises(TacitError, match=r"nn\.GRUCell in a loop"):
        from_torch(nn.GRU(6, 3), softmax())
    dropping = equinox.nn.Sequential([equinox.nn.Linear(6, 3, key=KEY), equinox.nn.Dropout(0.5)])
    with pytest.raises(TacitError, match=r"\(Dropout\) draws random numbers.*inference_mode"):
        from_equinox(dropping, softmax())
    fitted(from_equinox(equinox.nn.inference_mode(dropping), softmax()), tables((6,)))


def through_every_round(problem, first, data):
    """The points after every round of a simulation without noise."""
    points = []
    for rounds in range(1, 5):
        own = {"num_rounds": rounds, "output": "last"}
        algorithm = find("mb-sgd").build(problem, **TERMS, noise_multiplier=0.0, **own)
        points.append(simulate(algorithm, first, enrol(data), key=KEY, noise="each").params)
    return points


@pytest.mark.parametrize(("network", "form"), [("mlp", "torch"), ("mlp", "equinox"), ("cnn", "torch"), ("cnn", "nnx")])
def test_every_round_is_that_of_ours(network, form):
    ours, theirs, first, data = pair(network, form)
    paths = [through_every_round(own.problem, own.theirs(first), data) for own in (ours, theirs)]
    for one, other in zip(*paths, strict=True):
        assert largest(one, theirs.ours(other)) < 1e-4
