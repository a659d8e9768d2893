"""`tacit choose`, `init` and `tune`, and what they write."""

import json
import subprocess
import sys
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from tacit.choosing import Situation, candidates, floors, study_for, winner
from tacit.cli import app
from tacit.data.csv_silos import silo_records
from tacit.errors import TacitError
from tacit.plans.spec import load_study, study_from
from tacit.studies.federation import federation_of
from tacit.studies.plan import paper_of
from tacit.studies.run import prepare, run

RUNNER = CliRunner()
CONVEX = ["--convex", "--beta", "0.5", "--records", "200,150,180,160", "-d", "6", "--epsilon", "4"]


def tacit(*arguments, code=0):
    done = RUNNER.invoke(app, [str(part) for part in arguments])
    if code == 0 and done.exception is not None:
        raise done.exception
    return done


def chosen(tmp_path, *flags):
    out = tmp_path / "chosen.toml"
    found = json.loads(tacit("choose", *flags, "--out", out, "--json").stdout)
    return found, load_study(out, ["run.alone=false"])


@pytest.fixture
def clinics(tmp_path):
    generator = np.random.default_rng(0)
    folder = tmp_path / "clinics"
    folder.mkdir()
    for name in ("bergen", "bodo", "molde", "oslo"):
        rows = ["age,sex,visit,ill"]
        for _ in range(40):
            age, sex = generator.integers(20, 90), generator.choice(["f", "m"])
            ill = (age - 55) / 15 + 0.5 * (sex == "m") + generator.normal() > 0
            rows.append(f"{age},{sex},2024-01-0{generator.integers(1, 9)},{'yes' if ill else 'no'}")
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


DECLARE = ("--target", "ill", "--levels", "ill=no,yes", "--levels", "sex=f,m", "--range", "age=0:110")


def test_the_study_that_choose_writes_runs(tmp_path):
    found, study = chosen(tmp_path, *CONVEX, "--max-rounds", "20")
    assert study.algorithm.name == found["winner"]
    applies = {row["algorithm"] for row in found["candidates"] if row["applies"]}
    convex = {"mb-sgd", "accelerated-mb-sgd", "one-pass-accelerated", "localised-mb-sgd", "mu2-sgd"}
    assert {*convex, "prox-spider"} == applies
    best = next(row for row in found["candidates"] if row["algorithm"] == found["winner"])
    rivals = [row["bound"] for row in found["candidates"] if row["measure"] == best["measure"]]
    assert best["bound"] == min(rivals)
    result = run(study)
    assert result.prepared.plan.silos[0].price.epsilon == pytest.approx(4, rel=2e-3)
    sizes = [silo.records for silo in result.prepared.plan.silos]
    assert sizes == [200, 150, 180, 160]


@pytest.mark.parametrize("sizes", [(1000, 1000), (212, 205, 86, 140), (699, 700, 701), (2, 3, 7)])
def test_made_up_silos_train_on_as_many_records_as_were_asked_for(sizes):
    situation = Situation(convex=True, smoothness=1, sizes=sizes, dimension=3, epsilon=1)
    study = study_from(study_for(situation, winner(candidates(situation))))
    assert tuple(len(silo.train["y"]) for silo in federation_of(study, 0).silos) == sizes


def test_choose_and_plan_agree_on_the_conditions_of_shuffled_reports():
    terms = {"shuffler": True, "sizes": (212, 205, 86, 140), "dimension": 100, "epsilon": 4, "max_rounds": 2}
    situation = Situation(convex=False, smoothness=2, **terms)
    found = candidates(situation)
    reports = {c.algorithm: c for c in found if "psgm" in c.algorithm}
    assert len(reports) == 4
    assert all(any(text.startswith("eps0 that fits") for text in c.failed) for c in reports.values())
    plan = prepare(study_from(study_for(situation, reports["mb-psgm-fg"]) | {"run": {"alone": False}})).plan
    smallest = min(plan.silos, key=lambda silo: silo.records)
    printed = {c.text for c in paper_of(plan, smallest).conditions if not c.holds}
    assert printed
    assert printed <= set(reports["mb-psgm-fg"].failed)
    assert "psgm" not in winner(found).algorithm


@pytest.mark.parametrize(
    ("flags", "winner", "channel"),
    [
        (["--no-convex", "--beta", "0.5", "--max-rounds", "30"], "prox-spider", "direct"),
        (["--no-convex", "--beta", "0.5", "--shuffler", "--max-rounds", "30"], "prox-spider", "shuffled-sum"),
        (["--no-convex", "--beta", "0.5", "--peers", "--max-rounds", "30"], "prox-spider", "pairwise"),
        (["--convex", "--no-smooth", "--max-rounds", "30"], "accelerated-mb-sgd", "direct"),
        (["--convex", "--no-smooth", "--peers", "--max-rounds", "30"], "accelerated-mb-sgd", "pairwise"),
        (["--convex", "--beta", "0.5", "--mu", "0.1", "--max-rounds", "30"], "accelerated-mb-sgd", "direct"),
        (["--convex", "--beta", "0.5", "--goal", "population", "--alike", "--max-rounds", "700"], "mb-sgd", "direct"),
        (["--convex", "--beta", "0.5", "--fairness", "--peers", "--max-rounds", "5"], "steffle", "direct"),
    ],
)
def test_every_situation_gets_a_study_that_can_be_priced(tmp_path, flags, winner, channel):
    found, study = chosen(tmp_path, *flags, "--records", "200,150,180,160", "-d", "30", "--epsilon", "4")
    assert (found["winner"], study.algorithm.channel) == (winner, channel)
    prepared = prepare(study)
    assert max(silo.price.epsilon for silo in prepared.plan.silos) <= 4.001


def test_pairwise_sums_keep_the_promise_and_say_how_much_less_noise_there_is():
    """A theorem for direct messages holds where there is less noise; of two silos one may collude: direct."""
    direct, peers = (json.loads(tacit("choose", *CONVEX, *more, "--json").stdout) for more in ((), ("--peers",)))
    best, same = (
        next(row for row in own["candidates"] if row["algorithm"] == own["winner"]) for own in (direct, peers)
    )
    assert (same["channel"], same["bound"], best["channel"]) == ("pairwise", best["bound"], "direct")
    two = Situation(convex=True, smoothness=0.5, sizes=(900, 900), dimension=9, epsilon=1, peers=True)
    assert {row.channel for row in candidates(two) if row.applies} == {"direct"}
    three = replace(two, sizes=(900,) * 3)
    assert all("1.4 times smaller" in row.sentence for row in candidates(three) if row.applies)


def floors_of(*flags):
    """The floors of choose's JSON, by measure and claim."""
    found = json.loads(tacit("choose", *CONVEX, *flags, "--json").stdout)
    return found, {(row["measure"], row["claim"]): row for row in found["floors"]}


def test_floors_are_below_every_promise_and_trust_lowers_them():
    found, rows = floors_of("--epsilon", "0.5", "-d", "500")
    assert {claim for _, claim in rows} == {"(epsilon, delta)-DP", "Gaussian DP"}
    for row in found["candidates"]:
        for claim in ("(epsilon, delta)-DP", "Gaussian DP"):
            if row["applies"] and (row["measure"], claim) in rows and row["bound"] is not None:
                assert rows[row["measure"], claim]["value"] <= row["bound"]
    for trust in ("--peers", "--shuffler", "--trusted-server"):
        _, lower = floors_of("--epsilon", "0.5", "-d", "500", trust)
        assert all(row["trusts"] and row["value"] < rows[key]["value"] for key, row in lower.items())
    assert not any(row["trusts"] for row in rows.values())
    # Silos have their own numbers of records: the largest says most, so that the smallest does not speak for all.
    setting = Situation(convex=True, smoothness=0.5, sizes=(140, 150, 160, 1800), dimension=500, epsilon=0.5)
    uneven, even = (floors(replace(setting, sizes=own))[0].value for own in (setting.sizes, (140,) * 4))
    assert 0 < uneven < even


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--no-convex",), "convex losses"),
        (("--squared",), "squared losses"),
        (("--fairness",), "attribute"),
    ],
)
def test_no_floor_is_guessed(flags, words):
    _, rows = floors_of(*flags)
    assert all(row["value"] is None and words in " ".join(row["reasons"]) for row in rows.values())
    shown = " ".join(tacit("choose", *CONVEX, *flags).stdout.split())
    assert "No floor: " in shown
    assert words in shown


def test_losses_that_hardly_exist_have_no_floor():
    situation = Situation(convex=True, strong_convexity=0.5, lipschitz=0.4, sizes=(200, 100), dimension=3, epsilon=1)
    assert all(row.value is None and "so curved and so flat" in row.reasons[0] for row in floors(situation))


def test_reasons_say_what_is_missing():
    rows = json.loads(tacit("choose", *CONVEX, "--json").stdout)["candidates"]
    reasons = {row["algorithm"]: " ".join(row["reasons"]) for row in rows if not row["applies"]}
    assert "proximal-PL" in reasons["prox-sgd"]
    assert "shuffler" in reasons["ce-psgm"]
    assert "trusted server" in reasons["diff2-gd"]
    assert "fairness is not asked for" in reasons["steffle"]


def test_choose_prints_tables_and_never_writes_over(tmp_path):
    shown = tacit("choose", *CONVEX).stdout
    assert "Winner" in shown
    assert "theorems that do not apply" in shown
    assert "what no protocol beats" in shown
    out = tmp_path / "kept.toml"
    out.write_text("mine", encoding="utf-8")
    with pytest.raises(TacitError, match="--force"):
        tacit("choose", *CONVEX, "--out", out)
    assert out.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "--convex"),
        (["--convex"], "--records"),
        (["--convex", "--records", "many", *CONVEX[5:], "--silos", "2"], "whole numbers"),
        ([*CONVEX, "--silos", "3"], "leave --silos out"),
        ([*CONVEX, "--goal", "fame"], "population, empirical, gradient"),
        ([*CONVEX, "--participants", "9"], "participants=9"),
        ([*CONVEX, "--delta", "2"], "delta=2"),
        (["--no-convex", "--no-smooth", *CONVEX[3:], "--out", "nowhere.toml"], "No theorem applies"),
    ],
)
def test_mistakes_of_choosing_name_their_fix(flags, words):
    with pytest.raises(TacitError, match=words):
        tacit("choose", *flags, "--json")


def test_a_folder_of_files_becomes_a_study_that_runs(clinics, tmp_path):
    said = json.loads(tacit("init", clinics, *DECLARE, "--json").stdout)
    assert said["columns"] == {"age": "number", "sex": "category", "visit": "drop"}
    assert said["not_private"] == []
    study = load_study(clinics / "study.toml", ["run.seeds=1", "run.alone=false", "algorithm.num_rounds=3"])
    assert sorted(run(study).prepared.names) == ["bergen", "bodo", "molde", "oslo"]
    with pytest.raises(TacitError, match="--force"):
        tacit("init", clinics, *DECLARE, "--json")
    # The same study, improved by theory, keeps its records.
    found, better = chosen(tmp_path, "--study", clinics / "study.toml", "--diameter", "4", "--max-rounds", "20")
    assert found["records"] == [28, 28, 28, 28]
    assert better.data.name == "csv"
    prepare(better)


def test_private_statistics_are_written_into_the_study(clinics):
    tacit("init", clinics, "--target", "ill", "--levels", "ill=no,yes", "--levels", "sex=f,m", "--private", "quantiles")
    study = load_study(clinics / "study.toml", ["run.seeds=1"])
    assert study.preprocessing.columns == ("age",)
    assert [event.kind for event in prepare(study).plan.silos[0].events] == ["statistics", "gradient"]


def test_records_are_read_only_where_that_is_asked_for(clinics):
    with pytest.raises(TacitError, match=r"age = \{ low = 0"):
        tacit("init", clinics, "--target", "ill")
    assert not (clinics / "study.toml").exists()
    shown = tacit("init", clinics, "--target", "ill", "--read-records").stdout
    assert shown.count("NOT PRIVATE") == 3
    with pytest.raises(TacitError, match="there are age, sex, visit, ill"):
        tacit("init", clinics, "--force")


def test_bounds_come_from_a_file(clinics, tmp_path):
    bounds = tmp_path / "bounds.toml"
    bounds.write_text(
        "[age]\nlow = 0\nhigh = 120\n[sex]\nlevels = ['f', 'm']\n[ill]\nlevels = ['no', 'yes']\n", "utf-8"
    )
    tacit("init", clinics, "--target", "ill", "--bounds", bounds)
    schema = tomllib.loads((clinics / "schema.toml").read_text(encoding="utf-8"))
    assert schema["columns"]["age"]["high"] == 120
    bounds.write_text("[age]\nlow = 3\n", "utf-8")
    with pytest.raises(TacitError, match="low and high, or levels"):
        tacit("init", clinics, "--target", "ill", "--bounds", bounds, "--force")


def test_each_silo_reads_its_own_file_by_the_same_schema(clinics, tmp_path):
    from tacit.deploy.silo.policy import load_policy, load_records

    tacit("init", clinics, *DECLARE)
    home = tmp_path / "bergen"
    tacit("silo", "init", home, "--records", clinics / "bergen.csv", "--columns", clinics / "schema.toml")
    records = load_records(load_policy(home / "policy.toml"), home)
    assert records["x"].shape == (40, 2)
    with pytest.raises(TacitError, match="together"):
        tacit("silo", "init", tmp_path / "other", "--records", clinics / "bergen.csv")


def test_a_policy_and_its_schema_agree_on_the_classes_and_stray_cells_are_logged_here(clinics, tmp_path, caplog):
    from tacit.deploy.silo.policy import PolicyError, load_policy, load_records

    tacit("init", clinics, *DECLARE)
    home, records = tmp_path / "bergen", clinics / "bergen.csv"
    tacit("silo", "init", home, "--records", records, "--columns", clinics / "schema.toml")
    policy = home / "policy.toml"
    text = policy.read_text(encoding="utf-8")
    policy.write_text(text.replace("classes = 2", "classes = 5").replace('"binary"', '"multiclass"'), encoding="utf-8")
    with pytest.raises(PolicyError, match=r"classes = 5, but the target 'ill' of .*schema.toml has .*classes = 2;"):
        load_records(load_policy(policy), home)
    policy.write_text(text, encoding="utf-8")
    records.write_text(records.read_text(encoding="utf-8") + "111,f,2024-01-02,no\n", encoding="utf-8")
    load_records(load_policy(policy), home)
    assert "1 cell of 'age' outside [0, 110], moved to its ends" in caplog.text


def test_questions_are_asked_of_people(clinics, monkeypatch):
    monkeypatch.setattr("tacit.cli.choose.somebody_answers", lambda: True)
    done = RUNNER.invoke(app, ["init", str(clinics)], input="ill\n110:0\n0:110\nf\nf,m\nno, yes\n")
    assert done.exit_code == 0, done.output
    assert "records lie in" not in done.output
    assert "give at least two levels" in done.output
    assert "Expected LOW:HIGH with LOW < HIGH" in done.output
    schema = tomllib.loads((clinics / "schema.toml").read_text(encoding="utf-8"))
    assert schema["columns"]["age"] == {"kind": "number", "low": 0, "high": 110, "log": False, "missing": False}
    assert schema["columns"]["sex"]["levels"] == ["f", "m"]
    assert schema["target"]["classes"] == ["no", "yes"]
    assert schema["read_from_records"] == []
    answers = "y\n0\ny\n0.5\ny\nn\nn\nn\nn\n500\n8\n11\n1\n2\n1\n1e-6\n"
    done = RUNNER.invoke(app, ["choose"], input=answers)
    assert done.exit_code == 0, done.output
    assert "At the smallest silo, 500 records" in done.output
    assert "assumed" not in done.output


def test_a_question_left_open_is_read_from_the_records_and_marked(clinics, monkeypatch):
    monkeypatch.setattr("tacit.cli.choose.somebody_answers", lambda: True)
    done = RUNNER.invoke(app, ["init", str(clinics), "--target", "ill"], input="0:110\n\nno,yes\n")
    assert done.exit_code == 0, done.output
    assert done.output.count("NOT PRIVATE") == 1
    assert "tacit silo init" not in done.output
    schema = tomllib.loads((clinics / "schema.toml").read_text(encoding="utf-8"))
    assert schema["read_from_records"] == ["sex"]


def test_what_was_read_from_records_is_said_everywhere(clinics, tmp_path):
    tacit("init", clinics, "--target", "ill", "--read-records")
    study = clinics / "study.toml"
    grid = ("--grid", "algorithm.step_size=[1,2]", "--set", "run.seeds=1", "--set", "algorithm.num_rounds=2", "--plan")
    assert "Not private" in tacit("tune", study, *grid).stdout
    assert json.loads(tacit("tune", study, *grid, "--json").stdout)["preprocessing_private"]
    shown = tacit("choose", "--study", study, "--max-rounds", "5").stdout
    assert "Not private" in shown
    with pytest.raises(TacitError, match="Declare them"):
        tacit("silo", "init", tmp_path / "b", "--records", clinics / "bergen.csv", "--columns", clinics / "schema.toml")
    assert not (tmp_path / "b").exists()


def test_private_statistics_are_not_offered_to_silos(clinics, tmp_path):
    levels = ("--target", "ill", "--levels", "ill=no,yes", "--levels", "sex=f,m")
    shown = tacit("init", clinics, *levels, "--private", "moments").stdout
    assert "--range age=LOW:HIGH" in " ".join(shown.split())
    assert "tacit silo init" not in shown
    with pytest.raises(TacitError, match="without --private"):
        tacit("silo", "init", tmp_path / "b", "--records", clinics / "bergen.csv", "--columns", clinics / "schema.toml")


def test_what_must_be_declared_is_told_as_a_file_to_fill_in(clinics, tmp_path):
    with pytest.raises(TacitError) as told:
        tacit("init", clinics, "--target", "ill", "--levels", "ill=no,yes")
    lines = [line.strip() for line in str(told.value).splitlines() if " = {" in line]
    assert "age = { low = 0, high = 100 }" in lines
    filled = "\n".join(lines).replace('"A", "B"', '"f", "m"').replace("high = 100", "high = 110")
    (tmp_path / "bounds.toml").write_text(filled, encoding="utf-8")
    done = tacit("init", clinics, "--target", "ill", "--levels", "ill=no,yes", "--bounds", tmp_path / "bounds.toml")
    assert "Target: ill, one of no, yes." in done.stdout


def test_a_second_study_of_a_folder_has_a_schema_of_its_own(clinics, tmp_path):
    tacit("init", clinics, *DECLARE)
    other = tmp_path / "new" / "other.toml"
    assert "tacit silo init" in tacit("init", clinics, *DECLARE[:-1], "age=0:50", "--out", other).stdout
    assert tomllib.loads((other.parent / "other.schema.toml").read_text("utf-8"))["columns"]["age"]["high"] == 50
    facts = json.loads(tacit("data", other, "--json").stdout)
    assert [silo["name"] for silo in facts["silos"]] == ["bergen", "bodo", "molde", "oslo"]
    assert any("age in [0, 50]" in step["detail"] for step in facts["steps"])
    _, better = chosen(tmp_path, "--study", other, "--max-rounds", "5")
    assert better.objective.regulariser == "l2-ball:10"  # assumed, and said: the study has none


@pytest.mark.parametrize(
    ("flags", "words"),
    [(("--epsilon", "-1"), "epsilon=-1"), (("--epsilon", "0"), "above 0"), (("--delta", "1"), "delta")],
)
def test_budgets_that_make_no_sense_write_nothing(clinics, flags, words):
    with pytest.raises(TacitError, match=words):
        tacit("init", clinics, *DECLARE, *flags)
    assert not (clinics / "schema.toml").exists()


def test_silos_say_what_comes_first(clinics, tmp_path):
    with pytest.raises(TacitError, match="got the file"):
        tacit("silo", "init", clinics / "oslo.csv")
    with pytest.raises(TacitError, match=r"tacit silo init .*nowhere"):
        tacit("ledger", tmp_path / "nowhere")
    tacit("init", clinics, *DECLARE)
    home = tmp_path / "home"
    files = ("--records", clinics / "oslo.csv", "--columns", clinics / "schema.toml")
    assert "put the records" not in tacit("silo", "init", home, *files).stdout
    for command in (("ledger",), ("silo", "status")):
        assert f"tacit silo serve {home}" in tacit(*command, home).stdout
    with pytest.raises(TacitError, match=r"tacit silo serve .*home"):
        tacit("silo", "approve", home, "0" * 64)


def test_tuning_is_priced_before_it_runs():
    grid = ("--grid", "algorithm.step_size=[1,8]", "--set", "run.seeds=1")
    plan = json.loads(tacit("tune", "heart-disease", *grid, "--plan", "--json").stdout)
    assert plan["budget_covers"].startswith("the other silos")
    assert all(silo["epsilon_of_one"] < 0.75 < silo["epsilon"] <= 1.0 + 1e-9 for silo in plan["silos"])
    with pytest.raises(TacitError, match="Expected --grid such as"):
        tacit("tune", "heart-disease", "--grid", "algorithm.step_size=fast")
    with pytest.raises(TacitError, match="--against silos or --against public"):
        tacit("tune", "heart-disease", *grid, "--against", "nobody")


def test_tuning_says_where_noise_may_have_chosen_and_keeps_what_made_its_model(tmp_path):
    short = ("--set", "run.seeds=1", "--set", "algorithm.num_rounds=2", "--out", tmp_path)
    said = " ".join(tacit("tune", "heart-disease", "--grid", "algorithm.step_size=[1,1.01]", *short).stdout.split())
    [run] = tmp_path.iterdir()
    told = json.loads((run / "tuned.json").read_text(encoding="utf-8"))
    held = sum(silo["validation"] for silo in told["silos"])
    assert told["score_deviation"] == pytest.approx(2 * told["score_noise"] / held)  # four silos, whose noises add up
    assert f"± {told['score_deviation']:.3f} of noise" in said
    assert "Noise may have chosen" in said
    assert load_study(run / "study.toml").algorithm.step_size == told["chosen"]["algorithm.step_size"]
    assert json.loads((run / "provenance.json").read_text(encoding="utf-8"))["versions"]
    with pytest.raises(TacitError, match=r"tuned\.json has the price"):
        tacit("report", run)


def test_tuning_says_whom_its_price_holds_against_and_calls_an_error_an_error(tmp_path):
    short = ("--set", "run.seeds=1", "--set", "algorithm.num_rounds=2", "--set", "algorithm.channel=trusted")
    grid = ("--grid", "algorithm.step_size=[1,8]", *short)
    everyone = " ".join(tacit("tune", "heart-disease", *grid, "--plan").stdout.split())
    assert "covers everyone" in everyone
    assert "does not cover" not in everyone
    done = tacit("tune", "heart-disease", *grid, "--against", "public", "--out", tmp_path)
    said = " ".join(done.stdout.split())
    [run] = tmp_path.iterdir()
    told = json.loads((run / "tuned.json").read_text(encoding="utf-8"))
    worst = max(silo["epsilon"] for silo in told["silos"])
    assert worst > 1.5
    assert "It does not cover the other silos: they see every candidate" in said
    assert f"Against them epsilon is {worst:.4g}." in said
    assert "covers the public alone" in said
    assert "Simulated: the number of candidates follows from the study's seed" in said
    assert "private validation error" in said
    assert "less is better" in said
    assert "score" not in said
    assert "are not priced" in said
    assert not [name for name in told["metrics"] if not name.startswith("test_")]


@pytest.mark.parametrize("command", [["choose"], ["init"], ["tune"], ["silo", "init"]])
def test_help_has_an_example(command):
    assert f"Example: tacit {' '.join(command)} " in " ".join(tacit(*command, "--help").stdout.split())


def test_from_files_to_price_in_processes_of_their_own(clinics, tmp_path):
    def process(*arguments):
        code = "from tacit.cli import main; main()"
        return subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=300,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    wrong = process("init", "clinics", "--target", "ill")
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr
    assert "--range COLUMN=LOW:HIGH" in wrong.stderr
    assert process("init", "clinics", *DECLARE).returncode == 0
    done = process("plan", "clinics/study.toml", "--json", "--set", "run.seeds=1")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [silo["name"] for silo in found["silos"]] == ["bergen", "bodo", "molde", "oslo"]
    # A daemon splits nothing: what it would train on is said beside what the simulation does.
    for silo in found["silos"]:
        records = silo_records(clinics / f"{silo['name']}.csv", clinics / "schema.toml", tell=pytest.fail)["y"]
        assert found["records_with_held_out"][silo["name"]] == len(records) > silo["records"]


def test_levels_of_which_none_occurs_are_refused(clinics):
    with pytest.raises(TacitError, match="letter by letter"):
        tacit("init", clinics, *DECLARE, "--levels", "sex=F,M")
    assert not (clinics / "study.toml").exists()
    shown = " ".join(tacit("init", clinics, *DECLARE, "--levels", "sex=f,x").stdout.split())
    assert "'m' occurs but is not among its levels" in shown


def test_another_norm_keeps_more_of_size_and_moves_clip_and_step(clinics):
    tacit("init", clinics, *DECLARE)
    usual = load_study(clinics / "study.toml")
    tacit("init", clinics, *DECLARE, "--norm", "7", "--force")
    longer = load_study(clinics / "study.toml")
    assert longer.algorithm.clip_norm == pytest.approx(5 * usual.algorithm.clip_norm, rel=0.01)
    assert longer.algorithm.step_size == pytest.approx(usual.algorithm.step_size / 5, rel=0.01)
    assert federation_of(longer, 0).feature_norm == 7.0
