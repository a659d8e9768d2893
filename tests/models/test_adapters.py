"""Adapters and frozen backbones: what is trained moves, what is frozen does not, and weights have their hash."""

import hashlib
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import tacit
from tacit.errors import TacitError
from tacit.models import backbone, from_torch, lora, to_torch, with_weights
from tacit.models.torch_module import flat
from tacit.objectives import Objective, Problem, linear, softmax
from tests.models.brought import tables

SGD = tacit.mb_sgd(step_size=0.5, num_rounds=4, output="last")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))


def fitted(objective, data, budget=None):
    terms = {"budget": budget, "clip_norm": None if budget is None else 1.0, "measure_every": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tacit.fit(Problem(objective), data, SGD, **terms)


@pytest.mark.parametrize("budget", [None, tacit.Budget(epsilon=5.0, delta=1e-3)], ids=["open", "private"])
def test_only_b_and_the_head_move(budget):
    adapted = lora(network(), rank=2, seed=0, head=("4",))
    before = {name: value.clone() for name, value in adapted.state_dict().items()}
    fit = fitted(from_torch(adapted, softmax()), tables((6,)), budget)
    trained = {"0.up.weight", "2.up.weight", "4.weight", "4.bias"}
    assert set(flat(fit.params)) == trained
    after = to_torch(adapted, fit.params).state_dict()
    assert {name for name in before if not torch.equal(before[name], after[name])} == trained
    assert sum(leaf.size for leaf in flat(fit.params).values()) == 2 * 16 * 2 + 16 * 3 + 3


def test_an_adapter_starts_as_the_module_and_is_the_same_for_one_seed():
    module, x = network(), torch.randn(5, 6)
    adapted = lora(module, rank=2, seed=0)
    torch.testing.assert_close(adapted(x), module(x))
    assert torch.equal(adapted[0].down.weight, lora(module, rank=2, seed=0)[0].down.weight)
    assert not torch.equal(adapted[0].down.weight, lora(module, rank=2, seed=1)[0].down.weight)
    assert all(weight.requires_grad for weight in module.parameters())


class Attends(nn.Module):
    """Torch reads the weights of its dense layers without calling them."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.body = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x).mean(1))


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_a_transformer_is_adapted_and_trained(mode):
    torch.manual_seed(0)
    module = Attends(dropout=0.0 if mode else 0.1).train(mode)
    adapted, x = lora(module, rank=2, seed=0, head=("head",)), tables((4, 8))[0]["x"]
    torch.testing.assert_close(adapted(torch.from_numpy(x)), module(torch.from_numpy(x)))
    fit = fitted(from_torch(adapted, softmax()), tables((4, 8)))
    ups = {f"body.{name}.up.weight" for name in ("self_attn.out_proj", "linear1", "linear2")}
    assert set(flat(fit.params)) == {*ups, "head.weight", "head.bias"}
    assert all(np.abs(fit.params[name.rpartition(".")[0]]["weight"]).max() > 0 for name in ups)
    expected = to_torch(adapted, fit.params)(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(fit.model.outputs(x), expected, atol=1e-5)


def test_what_attention_leaves_out_at_random_is_refused():
    with pytest.raises(TacitError, match=r"\(MultiheadAttention\) draws random numbers"):
        from_torch(nn.MultiheadAttention(8, 2, dropout=0.1), softmax())


def test_what_cannot_be_adapted_is_named():
    with pytest.raises(TacitError, match="rank=0"):
        lora(network(), rank=0, seed=0)
    with pytest.raises(TacitError, match="got 'last'"):
        lora(network(), rank=1, seed=0, head=("last",))
    with pytest.raises(TacitError, match="none to adapt"):
        lora(nn.Conv2d(1, 1, 3), rank=1, seed=0)


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "body.safetensors"
    body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh())
    body[1].running_mean += 0.5
    save_file(body.state_dict(), path)
    return path, hashlib.sha256(path.read_bytes()).hexdigest(), body


def test_weights_are_those_of_their_hash(weights):
    path, digest, body = weights
    fresh = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh())
    loaded = with_weights(fresh, path, digest=digest)
    assert all(torch.equal(a, b) for a, b in zip(loaded.state_dict().values(), body.state_dict().values(), strict=True))
    assert not any(weight.requires_grad for weight in loaded.parameters())
    with pytest.raises(TacitError, match="it is another file"):
        with_weights(fresh, path, digest="0" * 64)
    with pytest.raises(TacitError, match="do not fit the module"):
        with_weights(nn.Linear(6, 7), path, digest=digest)


def test_features_of_a_record_depend_on_no_other(weights):
    path, digest, body = weights
    features = backbone(body, path, digest=digest)
    x, rng = tables((6,), records=70)[0]["x"], np.random.default_rng(0)
    whole = features(x)
    np.testing.assert_allclose(whole, body.eval()(torch.from_numpy(x)).detach().numpy(), atol=1e-6)
    others = rng.normal(size=x.shape).astype(np.float32)
    others[5], others[69] = x[5], x[69]
    changed = features(others)
    np.testing.assert_array_equal(changed[[5, 69]], whole[[5, 69]])


def test_a_head_is_trained_on_features_that_are_made_once(weights):
    path, digest, body = weights
    features = backbone(body, path, digest=digest)
    data = [{"x": features(table["x"]), "y": table["y"]} for table in tables((6,), records=60)]
    fit = fitted(Objective(linear(8, 3), softmax()), data)
    start = fit.problem.objective.measure(fit.problem.objective.init(None), data[0])["loss"]
    assert fit.problem.objective.measure(fit.params, data[0])["loss"] < start


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.calls = nn.Linear(6, 2), 0

    def forward(self, x):
        self.calls += 1
        return self.linear(x) * self.calls


def test_a_backbone_that_keeps_state_is_found_out(tmp_path):
    save_file(Counts().state_dict(), tmp_path / "w.safetensors")
    digest = hashlib.sha256((tmp_path / "w.safetensors").read_bytes()).hexdigest()
    with pytest.raises(TacitError, match="keeps state"):
        backbone(Counts(), tmp_path / "w.safetensors", digest=digest)(tables((6,))[0]["x"])
