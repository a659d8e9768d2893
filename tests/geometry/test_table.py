"""Regularisers by name: what study files may write, and what they are told when they write something else."""

import jax.numpy as jnp
import numpy as np
import pytest

from tacit import geometry
from tacit.errors import TacitError

W = jnp.array([3.0, -0.5, 1.0])


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ("zero", geometry.zero()),
        ("l1:0.5", geometry.l1(0.5)),
        ({"kind": "l1", "strength": 0.5}, geometry.l1(0.5)),
        ("squared-l2:0.5", geometry.squared_l2(0.5)),
        ("elastic-net:0.5:2", geometry.elastic_net(0.5, 2)),
        ("group-lasso:0.5", geometry.group_lasso(0.5)),
        (
            {"kind": "group-lasso", "strength": 0.5, "groups": [0, 0, 1]},
            geometry.group_lasso(0.5, np.array([0, 0, 1])),
        ),
        ("box:0:1", geometry.box(0, 1)),
        ("l2-ball:1", geometry.l2_ball(1)),
        ("l1-ball:1", geometry.l1_ball(1)),
        ("simplex", geometry.simplex()),
        ({"kind": "simplex", "total": 2.0}, geometry.simplex(2.0)),
        (
            {"kind": "frobenius-ball", "radius": 1.0, "per_leaf": True},
            geometry.frobenius_ball(1.0, per_leaf=True),
        ),
        (
            {
                "kind": "sum",
                "terms": [{"kind": "squared-l2", "strength": 0.5}, {"kind": "l2-ball", "radius": 1.0}],
            },
            geometry.with_squared_l2(geometry.l2_ball(1.0), 0.5),
        ),
        ("squared-l2:1+squared-l2:2", geometry.squared_l2(3)),
        ("zero+l1:0.5", geometry.l1(0.5)),
    ],
)
def test_by_name(spec, same):
    made = geometry.regulariser(spec)
    np.testing.assert_allclose(made.prox(W, 0.7), same.prox(W, 0.7), rtol=1e-6)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("lasso:1", "did you mean 'group-lasso'"),
        ("l1", "'l1:STRENGTH'"),
        ("l1:1:2", "it has 2"),
        ("l1:big", "'big'"),
        ("l1:-1", "strength=-1"),
        ("l2-ball:0", "radius=0"),
        ("l2-ball:nan", "radius=nan"),
        ("box:2:1", "exchange"),
        ({"strength": 1.0}, "'kind'"),
        ({"kind": "l1"}, "'strength'"),
        ({"kind": "l1", "strenght": 1.0}, "'strenght'"),
        ({"kind": "l1", "strength": "a lot"}, "'a lot'"),
        ({"kind": "sum", "terms": []}, "'terms'"),
        ({"kind": "group-lasso", "strength": 1.0, "groups": "cells"}, "'cells'"),
        ({"kind": "group-lasso", "strength": 1.0, "groups": [0.5, 1.0]}, "whole numbers"),
        ("l1-ball:1+box:0:1", "closed"),
        ("group-lasso:1+box:0:1", "closed"),
        ("l1:1+l1:2", "closed"),
        (
            {
                "kind": "sum",
                "terms": [
                    {"kind": "group-lasso", "strength": 1.0, "groups": [0, 1, 1]},
                    {"kind": "frobenius-ball", "radius": 1.0, "per_leaf": True},
                ],
            },
            "within leaves",
        ),
        ("l1:1+simplex", "closed"),
    ],
)
def test_mistakes_are_explained(spec, words):
    with pytest.raises(ValueError, match=r"Expected|Unknown") as error:
        geometry.regulariser(spec)
    assert words in str(error.value)


def test_groups_must_cover_the_parameters():
    with pytest.raises(ValueError, match="one per entry of groups"):
        geometry.group_lasso(1.0, np.array([0, 1])).prox(W, 1.0)


def test_the_composition_of_an_open_pair_would_be_wrong():
    """Why the table refuses some sums: projecting after thresholding does not minimise l1 + simplex."""
    w = jnp.array([1.0, 0.5, -1.0])
    right = geometry.simplex(2.0).prox(w, 1.0)  # l1 is constant on the simplex
    composed = geometry.simplex(2.0).prox(geometry.l1(0.9).prox(w, 1.0), 1.0)
    assert float(jnp.abs(right - composed).max()) > 0.1


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("sum", "'l1:0.01\\+l2-ball:10'"),
        ("l1:1+sum", "got the word 'sum' alone"),
        ({"kind": "sum", "terms": [{"kind": "sum", "terms": []}]}, "beside the others"),
        ({"kind": "sum", "terms": ["l1:1"]}, "single regulariser with a 'kind', got 'l1:1'"),
        ({"strength": 1.0}, "frobenius-ball, sum; got"),
    ],
)
def test_a_sum_that_is_none_is_told_how_to_be_one(spec, words):
    with pytest.raises(TacitError, match=words) as caught:
        geometry.regulariser(spec)
    assert "did you mean 'sum'" not in str(caught.value)
