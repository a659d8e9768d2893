"""Bad studies are refused before any work, with the field, the value and the fix."""

import jax
import numpy as np
import pytest

from tacit.data import Federation, load
from tacit.errors import TacitError
from tacit.plans.assemble import problem_of
from tacit.plans.spec import ObjectiveSection, StudyError, load_study, parse_study, study_from, study_names
from tacit.studies.plan import plan_json
from tacit.studies.run import prepare


def refused(*overrides: str, study: str = "heart-disease") -> str:
    with pytest.raises(TacitError) as caught:
        prepare(load_study(study, overrides))
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("privacy.epsilon=0", ("privacy.epsilon", "greater than 0")),
        ("privacy.epsilon=nan", ("privacy.epsilon", "finite")),
        ("privacy.epsilon=-1", ("privacy.epsilon", "-1")),
        ("privacy.delta=1", ("privacy.delta", "less than 1")),
        ("privacy.delta=0.5", ("privacy.delta", "0.1", "nothing is promised", "0.5")),
        ("privacy.delta=0.0", ("privacy.delta", "greater than 0")),
        ("privacy.epsilom=1", ("privacy.epsilom", "did you mean 'epsilon'")),
        ("algorithm.name=mb-sdg", ("'mb-sdg'", "did you mean 'mb-sgd'")),
        ("algorithm.stepsize=1", ("stepsize", "parameter of mb-sgd")),
        ("algorithm.num_rounds=0", ("algorithm.num_rounds", "greater than or equal to 1")),
        ("algorithm.step_size=inf", ("algorithm.step_size", "finite")),
        ("algorithm.clip_norm=none", ("clip_norm", "norm bound")),
        ("algorithm.channel=open", ("channel", "privacy.epsilon")),
        ("algorithm.channel=opn", ("algorithm.channel", "direct")),
        ("algorithm.name=local-sgd", ("output", "local-sgd", "--set algorithm.output=none")),
        ("algorithm.name=accelerated-mb-sgd", ("'output'", "accelerated-mb-sgd", "--set algorithm.output=none")),
        ("run.grid.privacy.epsilon=4", ("run.grid", "privacy.epsilon", "[1, 4]")),
        ("run.grid.privacy.epsilom=[1,4]", ("run.grid", "privacy.epsilom")),
        ("run.grid.privacy.epsilon=[1,0]", ("run.grid.privacy.epsilon", "got 0", "greater than 0")),
        ("run.grid.algorithm.clip_norm=[1,0]", ("run.grid.algorithm.clip_norm", "got 0", "greater than 0")),
        ('run.grid.algorithm.step_size=["fast"]', ("run.grid.algorithm.step_size", "'fast'", "[1, 4]")),
        ("run.grid.algorithm.step_size=[1,nan]", ("run.grid.algorithm.step_size", "nan", "[1, 4]")),
        ("run.grid.algorithm.step_size=[true]", ("run.grid.algorithm.step_size", "True", "[1, 4]")),
        ("data.name=hart-disease", ("hart-disease", "heart-disease")),
        ("objective.loss=squared", ("objective.loss", "logistic")),
        ("objective.model=mlp", ("hidden",)),
        ("objective.loss=absolute", ("objective.loss", "logistic, softmax, hinge")),
        ("objective.loss=pinball", ("objective", "quantile")),
        ("objective.quantile=0.5", ("objective", "pinball")),
        ("objective.smoothness=1.0", ("smoothness", "hinge")),
        ("objective.hidden=[3]", ("hidden", "mlp")),
        ("objective.channels=[3]", ("channels", "cnn")),
        ("objective.activation=tanh", ("activation", "mlp")),
        ("objective.model=cnn", ("objective.model", "images", "(13,)")),
        ("objective.regulariser=l3:1", ("objective.regulariser", "l3")),
        ("run.participants=9", ("participants=9", "silos=4")),
        ("run.seeds=0", ("run.seeds",)),
        ("run.seeds=[1,1]", ("run.seeds", "different")),
        ("partition.silos=0", ("partition.silos",)),
        ("nonsense", ("section.key=value",)),
        ("name.too.deep=1", ("'name'", "section")),
    ],
)
def test_a_bad_field_is_named_with_its_fix(override, parts):
    message = refused(override)
    for part in parts:
        assert part in message


def test_a_grid_over_epsilon_needs_a_study_with_one():
    words = refused("privacy.epsilon=none", "run.grid.privacy.epsilon=[1,4]")
    assert "run.grid.privacy.epsilon" in words
    assert "set privacy.epsilon" in words


@pytest.mark.parametrize(
    ("key", "typo"), [("clip_norm", "clip_nrom"), ("num_rounds", "num_ronuds"), ("step_size", "stepsize")]
)
def test_a_misspelt_key_is_named_where_what_it_means_seems_to_be_missing(key, typo):
    text = "\n".join(
        ['name = "a"', "[data]", 'name = "heart-disease"', "[algorithm]", 'name = "mb-sgd"']
        + [f"{typo if name == key else name} = 1" for name in ("clip_norm", "num_rounds", "step_size")]
        + ["[privacy]", "epsilon = 1.0"]
    )
    with pytest.raises(StudyError) as caught:
        parse_study(text)
    assert f"algorithm.{typo}: Unknown parameter of mb-sgd '{typo}'; did you mean '{key}'?" in str(caught.value)


def test_a_batch_larger_than_a_silo_is_refused_with_the_numbers():
    message = refused("algorithm.sampling=wor", "algorithm.batch_size=100")
    assert "batch=100" in message
    assert "records=86" in message


def test_one_pass_needs_enough_records():
    message = refused("algorithm.sampling=one-pass", "algorithm.batch_size=10")
    assert "rounds=30" in message
    assert "records=" in message


def test_sampling_and_batch_size_must_agree():
    assert "batch_size" in refused("algorithm.sampling=wor")
    assert "batch_size" in refused("algorithm.batch_size=3")


def test_epsilon_and_noise_exclude_each_other():
    assert "not both" in refused("privacy.noise_multiplier=3")


def test_one_epsilon_per_silo_or_one_for_all():
    assert "4 of them" in refused("privacy.epsilon=[1.0, 2.0]")
    plan = prepare(load_study("heart-disease", ["privacy.epsilon=[1.0, 2.0, 4.0, 8.0]", "run.seeds=1"])).plan
    noise = [silo.multipliers["gradient"] for silo in plan.silos]
    assert noise == sorted(noise, reverse=True)
    assert [round(silo.price.epsilon, 3) for silo in plan.silos] == [1, 2, 4, 8]


def test_a_study_of_another_version_is_refused():
    with pytest.raises(StudyError, match=r"format=7.*another version"):
        parse_study('format = 7\nname = "x"')


def test_broken_toml_and_missing_fields():
    with pytest.raises(StudyError, match="not valid TOML"):
        parse_study("name = ")
    with pytest.raises(StudyError, match=r"algorithm: missing"):
        parse_study('name = "x"\n[data]\nname = "heart-disease"')


def test_a_key_without_its_section_is_told_where_it_lives():
    with pytest.raises(
        StudyError, match=r"Unknown key 'epsilon'; did you mean privacy.epsilon or validation.epsilon\?"
    ):
        load_study("heart-disease", ["epsilon=1"])


def test_unknown_and_missing_studies(tmp_path):
    with pytest.raises(StudyError, match="did you mean 'heart-disease'"):
        load_study("heart-diseas")
    with pytest.raises(StudyError, match="No study file"):
        load_study(tmp_path / "mine.toml")


def test_overrides_reach_every_type():
    study = load_study(
        "heart-disease",
        ["privacy.epsilon=none", "run.seeds=[3,4]", "algorithm.output=last", "objective.regulariser=l1:0.1"],
    )
    assert not study.privacy.private
    assert study.run.seed_list == (3, 4)
    assert study.algorithm.own == {"output": "last"}


@pytest.mark.parametrize("name", study_names())
def test_every_shipped_study_is_valid_and_named_like_its_file(name):
    assert load_study(name).name == name


def test_the_papers_noise_is_used_as_printed_and_priced_as_it_is():
    ours, theirs = (
        prepare(load_study("heart-disease", ["run.seeds=1", f"privacy.accountant={name}"])).plan.silos[0]
        for name in ("tight", "paper")
    )
    assert theirs.multipliers["gradient"] > 20 * ours.multipliers["gradient"]
    assert theirs.price.epsilon < 0.05


def test_the_papers_noise_is_refused_where_its_conditions_fail():
    message = refused("privacy.accountant=paper", "privacy.epsilon=60")
    assert "Theorem" in message
    assert "epsilon" in message


IMAGES = Federation("images", (), "multiclass", 4, (10, 14, 2), None, (), "")


def of_images(**section):
    study = load_study("heart-disease", ["objective.loss=softmax"])
    return problem_of(study.model_copy(update={"objective": ObjectiveSection(loss="softmax", **section)}), IMAGES)


def test_a_cnn_is_built_for_the_images_of_its_data():
    problem = of_images(model="cnn", channels=(3,), hidden=(5,))
    shapes = {name: layer["w"].shape for name, layer in problem.objective.init(jax.random.key(0)).items()}
    assert shapes == {"conv_1": (50, 3), "dense_1": (3 * 5 * 3, 5), "dense_2": (5, 4)}
    with pytest.raises(StudyError, match=r"flat features.*\(10, 14, 2\).*cnn"):
        of_images(model="linear")
    with pytest.raises(TacitError, match="whole number of 2x2 windows"):
        of_images(model="cnn")  # two 5x5 convolutions do not fit


def test_the_activation_of_a_network_is_the_one_asked_for():
    outputs = {}
    for activation in (None, "relu", "softplus", "tanh"):
        section = ObjectiveSection(model="mlp", hidden=(3,), activation=activation)
        study = load_study("heart-disease")
        study = study.model_copy(update={"objective": section})
        objective = problem_of(study, load("heart-disease", seed=0)).objective
        outputs[activation] = objective.losses(
            objective.init(jax.random.key(0)), {"x": np.ones((1, 13)), "y": np.zeros(1)}
        ).item()
    assert outputs[None] == outputs["relu"]
    assert len(set(outputs.values())) == 3


@pytest.mark.parametrize(
    ("loss", "task", "slope", "smoothness"),
    [
        ({"loss": "hinge"}, "binary", 1.0, None),
        ({"loss": "hinge", "smoothness": 7.0}, "binary", 1.0, 7.0),
        ({"loss": "logistic"}, "binary", 1.0, 0.25 * 5.0),
        ({"loss": "softmax"}, "binary", 2**0.5, 0.5 * 5.0),
        ({"loss": "squared"}, "regression", None, 5.0),
        ({"loss": "absolute", "smoothness": 3.0}, "regression", 1.0, 3.0),
        ({"loss": "pinball", "quantile": 0.8}, "regression", 0.8, None),
    ],
)
def test_losses_are_wired_with_their_constants(loss, task, slope, smoothness):
    """Features of norm two and a bias: the norm of what multiplies the parameters is the root of five."""
    classes = None if task == "regression" else 2
    facts = Federation("made", (), task, classes, (3,), 2.0, (), "")
    study = load_study("heart-disease").model_copy(update={"objective": ObjectiveSection(**loss)})
    problem = problem_of(study, facts)
    assert problem.lipschitz == (None if slope is None else pytest.approx(slope * 5**0.5))
    assert problem.smoothness == (None if smoothness is None else pytest.approx(smoothness))


def test_a_user_level_budget_covers_a_whole_silo_and_each_record_of_it():
    overrides = ["run.seeds=1", "privacy.epsilon=4.0", "privacy.user_level=true"]
    prepared = prepare(load_study("heart-disease", overrides))
    for silo in plan_json(prepared.plan)["silos"]:
        assert 3.999 <= silo["user_level"]["epsilon"] <= 4.0
        # Full batches: the records of a silo share mu, so that each of them has less than its share of epsilon.
        assert 0 < silo["epsilon"] < 4.0 / silo["records"]
    record = prepare(load_study("heart-disease", overrides[:2])).plan
    for whole, one in zip(prepared.plan.silos, record.silos, strict=True):
        ratio = whole.multipliers["gradient"] / one.multipliers["gradient"]
        assert ratio == pytest.approx(one.records, rel=1e-3)


def test_user_level_is_refused_where_it_is_no_promise():
    assert "user_level" in refused("privacy.user_level=true", "algorithm.channel=shuffled-sum")
    assert "user_level" in refused("privacy.user_level=true", "privacy.epsilon=none", "privacy.noise_multiplier=3")
    shuffled = prepare(load_study("heart-disease", ["run.seeds=1", "algorithm.channel=shuffled-sum"])).plan
    assert all(silo["user_level"] is None for silo in plan_json(shuffled)["silos"])


def test_none_leaves_an_optional_parameter_out():
    study = load_study("heart-disease", ["algorithm.output=none"])
    assert "output" not in study.algorithm.own
    other = load_study("heart-disease", ["algorithm.name=prox-spider", "algorithm.output=none"])
    assert "output" not in refused_text(other)


def refused_text(study) -> str:
    try:
        prepare(study)
    except TacitError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "override",
    ["run.grid.privacy.epsilon=[1,4]", 'run.grid={"privacy.epsilon"=[1,4]}', "run.grid={privacy={epsilon=[1,4]}}"],
)
def test_a_grid_may_be_written_in_sections(override):
    study = load_study("heart-disease", [override, "run.grid.algorithm.step_size=[2.0]"])
    assert study.run.grid == {"privacy.epsilon": (1, 4), "algorithm.step_size": (2.0,)}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((), ()),
        (("privacy.epsilon=10",), ()),
        (("privacy.epsilon=12",), ("promises little",)),
        (("privacy.delta=0.02",), ("1/86",)),
        (("privacy.delta=0.011",), ()),
        (("privacy.epsilon=20", "privacy.delta=0.02"), ("promises little", "1/86")),
    ],
)
def test_budgets_that_promise_little_are_told(overrides, words):
    warnings = plan_json(prepare(load_study("heart-disease", overrides)).plan)["warnings"]
    assert len(warnings) == len(words)
    assert all(word in line for word, line in zip(words, warnings, strict=True))


def test_folders_and_records_in_place_of_a_study_are_told_the_way(tmp_path):
    (tmp_path / "bergen.csv").write_text("age,ill\n", encoding="utf-8")
    with pytest.raises(StudyError, match=r"bergen\.csv holds records.*tacit init"):
        load_study(tmp_path / "bergen.csv")
    with pytest.raises(StudyError, match="tacit init"):
        load_study(tmp_path)
    (tmp_path / "study.toml").write_text("", encoding="utf-8")
    with pytest.raises(StudyError, match=r"is a folder; its study is .*study\.toml"):
        load_study(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"capacity": 30}, 'leave capacity out for sampling = "full"'),
        ({"capacity": 30, "sampling": "wor", "batch_size": 9}, 'leave capacity out for sampling = "wor"'),
        ({"capacity": 0, "sampling": "poisson", "batch_size": 9}, "algorithm.capacity: .* got 0"),
        ({"local_slope": 1.0}, "algorithm.local_slope: Unknown parameter of mb-sgd"),
        ({"name": "mb-psgm", "difference_slope": 1.0, "local_slope": 1.0}, "local_slope: Unknown parameter of mb-psgm"),
        (
            {"name": "ce-psgm", "difference_slope": 1.0, "local_steps": 1, "local_noise": 2.0},
            "Expected local_noise only with local_steps above 1",
        ),
        (
            {"name": "prox-spider", "phase_length": 2, "difference_sampling": "wor", "difference_batch_size": 9}
            | {"difference_slope": 1.0, "difference_capacity": 12},
            'Expected capacity=12 only for sampling="poisson"',
        ),
    ],
)
def test_a_parameter_that_would_be_ignored_is_refused_by_name(changes, words):
    algorithm = {"name": "mb-sgd", "num_rounds": 4, "step_size": 0.1, "clip_norm": 1.0, **changes}
    tree = {"name": "ignored", "data": {"name": "heart-disease"}, "algorithm": algorithm, "privacy": {"epsilon": 1.0}}
    with pytest.raises(ValueError, match=words):
        prepare(study_from(tree))


def test_a_capacity_is_used_where_batches_have_one():
    algorithm = {"name": "mb-sgd", "num_rounds": 4, "step_size": 0.1, "clip_norm": 1.0, "batch_size": 9}
    tree = {"name": "limited", "data": {"name": "heart-disease"}, "privacy": {"epsilon": 1.0}}
    prepared = prepare(study_from({**tree, "algorithm": {**algorithm, "capacity": 15}}))
    assert {event.capacity for silo in prepared.plan.silos for event in silo.events} == {15}


def test_a_baseline_is_checked_before_anything_runs():
    with pytest.raises(StudyError, match=r"baseline.step_sze: Unknown parameter of mb-sgd .* did you mean 'step_size'"):
        prepare(load_study("heart-disease", ["baseline.step_sze=3"]))


def test_options_of_a_loss_of_ours_are_keys_of_the_section():
    for loss, options in (
        ("softmax", {"class_weights": [1.0, 2.0, 4.0]}),
        ("huber", {"bend": 0.5}),
        ("pinball", {"quantile": 0.9, "smoothness": 3.0}),
    ):
        said = [ObjectiveSection(loss=loss, loss_options=options), ObjectiveSection(loss=loss, **options)]
        assert said[0] == said[1]
        assert not said[0].loss_options
        plain = said[0].model_dump(mode="json", exclude_none=True)
        assert {key: plain[key] for key in options} == options
    for wrong, words in (
        ({"loss": "huber", "loss_options": {"delta": 1.0}}, "loss 'huber' has no option 'delta'; it has bend"),
        ({"loss": "squared", "loss_options": {"bend": 1.0}}, "it has none"),
        ({"loss": "huber", "bend": 2.0, "loss_options": {"bend": 1.0}}, "set bend once"),
        ({"loss": "huber", "loss_options": {"bend": -1.0}}, "bend"),
    ):
        with pytest.raises(ValueError, match=words):
            ObjectiveSection(**wrong)
