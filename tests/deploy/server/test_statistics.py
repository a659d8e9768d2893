"""Statistics over real daemons: asked, answered with noise, debited, and followed by training on the same account."""

import json

import numpy as np
import pytest
import tomli_w

from tacit.data.schema import schema_from, schema_text
from tacit.deploy.permissions import write_secret
from tacit.deploy.server.checkpoint import Checkpoint
from tacit.deploy.server.coordinator import Coordinator, Patience, fresh_state, meet
from tacit.deploy.server.deployment import plan_for
from tacit.deploy.server.shuffles import Sums
from tacit.deploy.server.study import lead
from tacit.deploy.server.transport import SocketTransport
from tacit.deploy.silo.policy import load_description, load_policy, load_records
from tacit.deploy.silo.service import SiloService, home_of
from tacit.deploy.wire import Hello, Propose, RefusalError
from tacit.plans.catalogue import shipped
from tacit.plans.spec import study_from
from tacit.privacy import price
from tests.deploy.shuffler.parties import two_parties
from tests.deploy.silo.consortium import (
    LocalClient,
    LocalTransport,
    led_by,
    peers_of,
    policy_tree,
    running,
    silo_key,
)

NAMES, SIZES = ("s0", "s1", "s2"), (300, 500, 400)
SCHEMA = schema_from(
    {
        "target": {"column": "ill", "classes": ["no", "yes"]},
        "columns": {
            "age": {"kind": "number", "low": 20.0, "high": 80.0, "unit": "years"},
            "sex": {"kind": "category", "levels": ["f", "m"]},
        },
    },
    "test",
)
ASKED = [
    {"kind": "counts", "columns": ["ill"], "by": "sex"},
    {"kind": "histogram", "columns": ["age"], "edges": {"age": [30, 50, 70]}},
    {"kind": "moments", "columns": ["age"]},
]
DELTA = 1e-6


def rows_of(place: int) -> list[tuple[str, str, str]]:
    """Patients of a silo: some sex is not known, and one level no schema has heard of."""
    rng = np.random.default_rng(place)
    ages = np.clip(rng.normal(45 + 5 * place, 12, SIZES[place]), 10, 90).round()
    sexes = rng.choice(["f", "m", "", "x"], SIZES[place], p=[0.5, 0.45, 0.03, 0.02])
    ill = np.where(rng.random(SIZES[place]) < ages / 120, "yes", "no")
    return list(zip((f"{age:g}" for age in ages), sexes, ill, strict=True))


def write_silo(folder, place, **changes):
    folder.mkdir(parents=True, mode=0o700)
    lines = ["age,sex,ill", *(",".join(row) for row in rows_of(place))]
    write_secret(folder / "records.csv", "\n".join(lines) + "\n")
    write_secret(folder / "schema.toml", schema_text(SCHEMA))
    allow = {"algorithms": sorted(shipped()), "min_silos": 2} | changes.pop("allow", {})
    data = {"file": "records.csv", "columns": "schema.toml", "task": "binary", "classes": 2} | changes.pop("data", {})
    tree = policy_tree(folder.name, allow=allow, data=data, **changes)
    write_secret(folder / "policy.toml", tomli_w.dumps(tree))
    write_secret(folder / "sign.key", silo_key(folder.name))
    return folder


def study_tree(algorithm, epsilon=2.0, **more):
    privacy = {"epsilon": epsilon, "delta": DELTA}
    return {"name": "asked", "data": {"name": "silo"}, "algorithm": algorithm, "privacy": privacy, **more}


def statistics_tree(**changes):
    return {"name": "statistics", "statistics": ASKED, **changes}


@pytest.fixture(scope="module")
def silos(tmp_path_factory):
    root = tmp_path_factory.mktemp("asked")
    with running([write_silo(root / name, place) for place, name in enumerate(NAMES)]) as daemons:
        yield daemons


def led(root, silos, tree, **terms):
    root.mkdir(parents=True)
    (root / "study.toml").write_text(tomli_w.dumps(tree))
    told = {"silos": 3, "folder": str(root), "round_seconds": 120.0, **terms}
    (root / "deployment.toml").write_text(tomli_w.dumps({**told, **led_by(root, *NAMES)}))
    lead(root, SocketTransport([daemon.home.socket for daemon in silos]))
    return root


def spent_at(daemon) -> float:
    """What the ledger of a silo says that it has spent, once its daemon has stopped."""
    policy = load_policy(daemon.folder / "policy.toml")
    records = load_records(policy, daemon.folder)
    described = load_description(policy, daemon.folder, records)
    service = SiloService(policy, records, home_of(daemon.folder, policy), description=described)
    try:
        return [account.charged(service._ledger.rule) for account in service._ledger.accounts.values()]
    finally:
        service.close()


@pytest.fixture(scope="module")
def answered(silos, tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    led(root / "statistics", silos, study_tree(statistics_tree()))
    facts = json.loads((root / "statistics" / "statistics.json").read_text())
    algorithm = {"name": "mb-sgd", "num_rounds": 3, "step_size": 0.5, "clip_norm": 1.0, "sampling": "full"}
    led(root / "trained", silos, study_tree(algorithm))
    for daemon in silos:
        daemon.stop()
    return facts, root


def test_answers_are_near_the_truth_with_intervals_of_the_priced_noise(answered):
    facts, root = answered
    every = [row for place in range(3) for row in rows_of(place)]
    journal = [json.loads(line) for line in (root / "statistics" / "progress.jsonl").read_text().splitlines()]
    assert not [row for row in journal if row["event"] == "warning"], "there is no model to hand over"
    counts, _histogram, moments = facts["statistics"]
    true = sum(sex == "f" and ill == "yes" for _, sex, ill in every)
    [row] = [r for r in counts["rows"] if (r["group"], r["cell"], r["measure"]) == ("f", "yes", "count")]
    assert abs(row["value"] - true) <= 3 * (row["high"] - row["low"]) / 2
    assert row["high"] - row["low"] < 400
    other = [r for r in counts["rows"] if r["group"] == "other" and r["measure"] == "count"]
    assert len(other) == 4, "small groups are shown"
    ages = np.clip([float(age) for age, *_ in every], 20, 80)
    [mean] = [r for r in moments["rows"] if r["measure"] == "mean"]
    assert mean["low"] < ages.mean() < mean["high"] or abs(mean["value"] - ages.mean()) < 5
    assert moments["unit"] == "years"
    assert {silo["name"]: len(silo["statistics"]) for silo in facts["silos"]} == dict.fromkeys(NAMES, 3)
    assert (root / "statistics" / "statistics.png").stat().st_size > 1000


def test_ledgers_have_one_release_of_statistics_and_the_training(answered, silos):
    facts, _ = answered
    for silo, daemon in zip(facts["silos"], silos, strict=True):
        asked, trained = spent_at(daemon)
        [event] = asked.events
        assert (event.count, event.sampling, event.batch) == (1, "full", silo["records"])
        assert silo["epsilon_spent"] == pytest.approx(price(asked.events, delta=DELTA).epsilon, rel=1e-3)
        assert silo["epsilon"] <= 2.0
        [gradients] = trained.events
        assert gradients.count == 3


@pytest.fixture
def alone(tmp_path):
    """A silo's service in this process, with a small account."""
    folder = write_silo(tmp_path / "s0", 0, budget={"epsilon": 1.0, "delta": 1e-5})
    policy = load_policy(folder / "policy.toml")
    records = load_records(policy, folder)
    described = load_description(policy, folder, records)
    service = SiloService(policy, records, home_of(folder, policy), description=described)
    yield service
    service.close()


def proposed(service, epsilon=0.5, **changes):
    """What a silo says to a plan of statistics whose section is changed before it is sent."""
    client = LocalClient(service)
    welcome = client.ask(Hello())[0]
    study = study_from(study_tree(statistics_tree(), epsilon))
    plan = plan_for(study, [welcome.model_copy(update={"silo": name}) for name in NAMES], {}, proposer="tester")
    plan = plan.model_copy(update={"algorithm": {**plan.algorithm, **changes}})
    return client.ask(Propose(plan=plan))[0], plan


def test_a_silo_consents_to_its_own_columns(alone):
    consent, plan = proposed(alone)
    assert consent.state == "consented"
    assert [column["name"] for column in plan.algorithm["columns"]] == ["age", "sex", "ill"]


@pytest.mark.parametrize(
    "columns",
    [
        [{"name": "age", "kind": "category", "levels": ["no", "yes"], "place": 2}],
        [{"name": "ill", "kind": "number", "low": 20.0, "high": 80.0, "place": 0}],
        [{"name": "age", "kind": "number", "low": 20.0, "high": 60.0, "unit": "years", "place": 0}],
        [{"name": "age", "kind": "number", "low": 20.0, "high": 80.0, "unit": "years", "place": 9}],
        [],
        "age",
    ],
    ids=["renamed", "another column", "another range", "nowhere", "none", "text"],
)
def test_a_plan_that_calls_a_column_something_else_is_refused(alone, columns):
    with pytest.raises(RefusalError, match="columns as this silo's schema declares them"):
        proposed(alone, columns=columns)


def test_tables_that_would_keep_the_daemon_busy_are_refused_before_they_are_priced(alone):
    """A model of so many parameters is refused; so are that many cells, of however many tables."""
    wide = [{"kind": "table", "columns": ["age"], "by": "sex", "bins": 4096}] * 124
    with pytest.raises(RefusalError, match="at most 2000000 numbers in a round, got 2032112"):
        proposed(alone, statistics=wide)


def test_statistics_beyond_the_account_are_refused_with_numbers(alone):
    with pytest.raises(RefusalError) as refused:
        proposed(alone, epsilon=3.0)
    assert refused.value.code == "over-budget"
    fits = refused.value.numbers["fits"]
    assert f"epsilon {fits:g} would fit" in str(refused.value)
    with pytest.raises(RefusalError):
        proposed(alone, epsilon=1.3 * fits)
    assert proposed(alone, epsilon=0.3 * fits)[0].state == "consented"
    with pytest.raises(RefusalError) as again:
        proposed(alone, epsilon=fits)
    assert proposed(alone, epsilon=again.value.numbers["fits"])[0].state == "consented"


def summed(folder, daemons, channel, parties=()):
    """The server of a study of statistics among daemons without noise, once it has run."""
    transport, patience = LocalTransport([daemon.home.socket for daemon in daemons]), Patience(120.0, 120.0)
    met = meet(transport, 3, patience, lambda event, facts: None)
    seals = {party.terms.name: str(party.keys.seal.public) for party in parties}
    tree = study_tree(statistics_tree(channel=channel))
    plan = plan_for(study_from(tree), [met[name][1] for name in NAMES], seals, proposer="tester")
    point = Checkpoint(plan, NAMES, SIZES, fresh_state(plan, SIZES))
    callers = {party.terms.name: party.caller() for party in parties}
    sums = Sums(plan, NAMES, callers, coins=False) if parties else None
    addresses, path = {name: at for name, (at, _) in met.items()}, folder / "checkpoint.npz"
    coordinator = Coordinator(point, path, transport, addresses, patience=patience, shuffled=sums)
    coordinator.run()
    return coordinator


def check_counts(coordinator):
    """The counts of all silos' records by sex and illness are exact, and no silo's own are told."""
    counts = np.asarray(coordinator.params["s00"]).reshape(4, 4) * sum(SIZES)
    every = [row for place in range(3) for row in rows_of(place)]
    for group, sex in enumerate(("f", "m", "x", "")):
        for cell, ill in enumerate(("no", "yes")):
            assert counts[group, cell] == pytest.approx(sum(r[1:] == (sex, ill) for r in every), abs=0.01)
    assert coordinator.messages == {}


def test_a_shuffled_sum_says_the_counts_of_all_silos(tmp_path):
    """Without coins, through two real shufflers: the counts are exact, and no silo's own are told."""
    with two_parties(tmp_path, NAMES) as (parties, seals):
        shuffle = {"shufflers": seals, "colluding": 0, "max_local_epsilon": 8.0}
        own = {"test": True, "allow": {"channels": ["shuffled-sum"]}, "shuffle": shuffle}
        with running([write_silo(tmp_path / n, i, **own) for i, n in enumerate(NAMES)], noise_off=True) as daemons:
            check_counts(summed(tmp_path, daemons, "shuffled-sum", parties))


@pytest.fixture
def among(tmp_path):
    """Daemons that pin each other and nobody else, with noise or without."""

    def start(**own):
        folders = []
        for place, name in enumerate(NAMES):
            pairwise = {"peers": peers_of(name, NAMES), "colluding": 1, "min_silos": 3}
            pinned = {"allow": {"channels": ["pairwise"]}, "pairwise": pairwise, **own}
            folders.append(write_silo(tmp_path / name, place, **pinned))
        return running(folders, noise_off="test" in own)

    return start


def test_a_pairwise_sum_says_the_counts_of_all_silos(among, tmp_path):
    """Without noise they are exact."""
    with among(test=True) as daemons:
        check_counts(summed(tmp_path, daemons, "pairwise"))


def test_a_pairwise_sum_has_one_noise_for_all_silos(among, tmp_path):
    """Near the truth by the noise of one, and no silo's own are told."""
    with among() as daemons:
        led(tmp_path / "run", daemons, study_tree(statistics_tree(channel="pairwise"), pairwise={"colluding": 1}))
    facts = json.loads((tmp_path / "run" / "statistics.json").read_text())
    assert (facts["channel"], [silo["statistics"] for silo in facts["silos"]]) == ("pairwise", [None] * 3)
    every, counts = [row for place in range(3) for row in rows_of(place)], facts["statistics"][0]["rows"]
    for group in ("f", "m"):
        [row] = [r for r in counts if (r["group"], r["cell"], r["measure"]) == (group, "yes", "count")]
        half = (row["high"] - row["low"]) / 2
        assert abs(row["value"] - sum(r[1:] == (group, "yes") for r in every)) <= 2.5 * half
        assert half < 20
