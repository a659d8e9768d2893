"""Who may touch a silo's files: a daemon does not start where the courier's group could read or change them."""

import os
import stat

import pytest
import typer
from typer.testing import CliRunner

from tacit.cli.silo import silo_app
from tacit.deploy.permissions import check_courier, check_silo
from tacit.deploy.silo.policy import files_of, load_policy
from tacit.deploy.silo.server import serve
from tacit.deploy.silo.service import home_of
from tacit.errors import TacitError
from tests.deploy.silo.consortium import make_home, records_of

app = typer.Typer()
app.add_typer(silo_app)


@pytest.fixture(autouse=True)
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def clinic(tmp_path):
    folder = tmp_path / "clinic"
    home, policy = make_home(folder, records_of(0, 20))
    home.approved.mkdir(mode=0o700)
    home.ledger.touch(mode=0o600)
    home.counter.parent.mkdir(mode=0o700)
    home.counter.touch(mode=0o600)
    (tmp_path / "elsewhere.csv").touch(mode=0o600)
    return folder, files_of(folder, policy, home.counter)


def run(*words):
    found = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


def test_what_the_owner_alone_may_touch_is_accepted(clinic):
    folder, files = clinic
    check_silo(folder, files)
    folder.chmod(0o710)
    check_silo(folder, files)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
@pytest.mark.parametrize("name", ["records.npz", "policy.toml", "ledger.sqlite", "../apart/counter-clinic"])
def test_a_file_that_others_can_read_or_change_is_refused_with_its_cure(clinic, name, mode):
    folder, files = clinic
    (folder / name).chmod(mode)
    with pytest.raises(TacitError, match=rf"chmod 600 \S*{name.rsplit('/')[-1]}"):
        check_silo(folder, files)


def test_folders_that_others_can_enter_are_refused_with_their_cure(clinic):
    folder, files = clinic
    for path, mode, cure in ((folder, 0o730, 0o710), (folder, 0o755, 0o710), (folder / "approved", 0o770, 0o700)):
        before = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode)
        with pytest.raises(TacitError, match=f"chmod {cure:o} {path}"):
            check_silo(folder, files)
        path.chmod(before)
    check_silo(folder, files)


def test_records_in_a_folder_where_others_could_swap_them_are_refused(clinic, tmp_path):
    folder, files = clinic
    tmp_path.chmod(0o770)
    with pytest.raises(TacitError, match=f"chmod go-w {tmp_path}"):
        check_silo(folder, files)
    tmp_path.chmod(0o1777)
    check_silo(folder, files)


def test_a_folder_of_another_user_above_is_refused(clinic, tmp_path, monkeypatch):
    folder, files = clinic
    real = os.stat
    monkeypatch.setattr(
        os, "stat", lambda path, **how: _owned(real(path, **how), 12345 if str(path) == str(tmp_path) else None)
    )
    with pytest.raises(TacitError, match=f"chown {os.geteuid()} {tmp_path}$"):
        check_silo(folder, files)


def _owned(found, uid):
    return found if uid is None else os.stat_result([*found[:4], uid, *found[5:]])


def test_the_place_of_a_counter_that_is_not_there_yet_is_looked_at(clinic):
    folder, files = clinic
    counter = home_of(folder, load_policy(folder / "policy.toml")).counter
    counter.unlink()
    counter.parent.chmod(0o777)
    with pytest.raises(TacitError, match=f"chmod go-w {counter.parent.resolve()}"):
        check_silo(folder, files)


def test_a_cache_of_prices_that_others_can_write_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    home, policy = make_home(tmp_path / "clinic", records_of(0, 20))
    (tmp_path / "cache" / "prices").mkdir(parents=True)
    check_silo(home.folder, files_of(home.folder, policy, home.counter))
    (tmp_path / "cache" / "prices").chmod(0o777)
    with pytest.raises(TacitError, match=r"chmod go-w .*prices"):
        check_silo(home.folder, files_of(home.folder, policy, home.counter))


def test_the_daemon_makes_its_cache_of_prices_before_it_is_checked(clinic, tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    folder, _ = clinic
    folder.chmod(0o755)
    with pytest.raises(TacitError, match=f"chmod 710 {folder}"):
        serve(folder)
    assert stat.S_IMODE((tmp_path / "cache" / "prices").stat().st_mode) == 0o700


def test_a_link_to_records_that_others_can_read_is_refused(clinic, tmp_path):
    folder, files = clinic
    (tmp_path / "elsewhere.csv").chmod(0o644)
    (folder / "linked.csv").symlink_to(tmp_path / "elsewhere.csv")
    with pytest.raises(TacitError, match="chmod 600"):
        check_silo(folder, [*files, folder / "linked.csv"])


def test_files_of_another_user_are_refused(clinic, monkeypatch):
    folder, files = clinic
    real = folder.stat().st_uid
    if real == 0:
        os.chown(folder / "policy.toml", 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: real + 1)
    with pytest.raises(TacitError, match="chown"):
        check_silo(folder, files)


def test_the_daemon_does_not_start_where_the_couriers_group_can_read_records(tmp_path):
    folder = tmp_path / "clinic"
    home, _ = make_home(folder, records_of(0, 20))
    (folder / "records.npz").chmod(0o640)
    with pytest.raises(TacitError, match="chmod 600"):
        serve(folder)
    assert not home.ledger.exists()


def test_init_writes_for_the_owner_alone_whatever_the_umask(tmp_path):
    os.umask(0)
    run("silo", "init", tmp_path / "clinic")
    assert stat.S_IMODE((tmp_path / "clinic").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "clinic" / "policy.toml").stat().st_mode) == 0o600


def test_init_shuts_a_folder_that_is_too_open_and_names_open_records(tmp_path):
    folder = tmp_path / "clinic"
    folder.mkdir(mode=0o755)
    (folder / "records.npz").touch(mode=0o644)
    said = run("silo", "init", folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o710
    assert "was open to others" in said
    assert f"chmod 600 {folder / 'records.npz'}" in said


def test_init_leaves_the_folder_of_the_guide_as_it_is(tmp_path):
    (tmp_path / "clinic").mkdir()
    (tmp_path / "clinic").chmod(0o710)
    assert "was open" not in run("silo", "init", tmp_path / "clinic")
    assert stat.S_IMODE((tmp_path / "clinic").stat().st_mode) == 0o710


def by_modes(path, mode):
    """What a user of the folder's group may do, by the permissions."""
    try:
        return bool(path.stat().st_mode & mode << 3)
    except FileNotFoundError:
        return False


@pytest.fixture
def as_courier(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    monkeypatch.setattr(os, "access", by_modes)


def test_a_courier_that_can_read_nothing_runs(clinic, as_courier):
    folder, _ = clinic
    folder.chmod(0o710)
    assert check_courier(folder) is None


@pytest.mark.parametrize(
    ("name", "mode"), [("records.npz", 0o640), ("policy.toml", 0o620), ("", 0o750), ("approved", 0o770)]
)
def test_a_courier_that_could_read_or_change_the_silos_things_refuses(clinic, as_courier, name, mode):
    folder, _ = clinic
    folder.chmod(0o710)
    (folder / name).chmod(mode)
    with pytest.raises(TacitError, match="can read or change"):
        check_courier(folder)


def test_the_owner_may_run_the_courier_on_trial_and_is_warned(clinic):
    assert "For trials only" in check_courier(clinic[0])


def test_join_refuses_before_anything_is_started(clinic, as_courier, monkeypatch):
    (clinic[0] / "policy.toml").chmod(0o640)
    pytest.importorskip("flwr")
    monkeypatch.setattr("tacit.deploy.flower.node.serve", lambda *_, **__: pytest.fail("it was started"))
    with pytest.raises(TacitError, match=r"policy\.toml"):
        run("silo", "join", clinic[0], "--superlink", "localhost:1", "--authority", "ca.pem")


def test_a_daemon_makes_the_folders_of_decisions_for_itself(tmp_path, monkeypatch):
    """Whoever decides first must not be the one who makes them."""
    home, _ = make_home(tmp_path / "clinic", records_of(0, 20))
    monkeypatch.setattr("tacit.deploy.silo.server.serve_until_stopped", lambda *_: None)
    serve(home.folder)
    for path in (home.approved, home.decided):
        assert path.stat().st_mode & 0o777 == 0o700
