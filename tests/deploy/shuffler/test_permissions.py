"""A shuffler does not start where somebody else could change who is a silo, or read its keys."""

import os

import pytest
import tomli_w

from tacit.deploy.consortium.certificates import Authority
from tacit.deploy.permissions import PermissionsError, write_secret
from tacit.deploy.shuffler.config import load_terms, make_keys, terms_from
from tacit.deploy.shuffler.server import check_folder, serve


@pytest.fixture
def folder(tmp_path):
    found = tmp_path / "a"
    found.mkdir(mode=0o700)
    make_keys(found, "x25519")
    tls = {"certificate": "shuffler.pem", "key": "shuffler.key", "callers": "ca.pem"}
    write_secret(found / "shuffler.toml", tomli_w.dumps({"name": "a", "callers": {}, "silos": {}, "tls": tls}))
    for name, mode in (("shuffler.pem", 0o644), ("ca.pem", 0o644), ("shuffler.key", 0o600)):
        (found / name).write_text("")
        (found / name).chmod(mode)
    return found


def test_a_folder_of_the_owners_alone_is_fine_and_certificates_may_be_read(folder):
    check_folder(folder, load_terms(folder))


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("shuffler.toml", 0o620),
        ("shuffler.toml", 0o644),
        ("seal.key", 0o640),
        ("sign.key", 0o602),
        ("shuffler.key", 0o640),
        ("ca.pem", 0o664),
        ("shuffler.pem", 0o646),
        (".", 0o770),
    ],
)
def test_what_others_could_change_or_read_is_named(folder, name, mode):
    (folder / name).chmod(mode)
    with pytest.raises(PermissionsError, match="who is a silo") as caught:
        check_folder(folder, load_terms(folder))
    assert str(folder / name) in str(caught.value)
    assert "chmod" in str(caught.value)


def test_a_folder_above_that_others_can_write_is_named(folder):
    folder.parent.chmod(0o777)
    try:
        with pytest.raises(PermissionsError, match="replace"):
            check_folder(folder, load_terms(folder))
    finally:
        folder.parent.chmod(0o700)


def test_a_shuffler_with_loose_terms_does_not_serve_and_leaves_no_books(folder):
    (folder / "shuffler.toml").chmod(0o666)
    before = os.umask(0o022)
    try:
        with pytest.raises(PermissionsError, match=r"shuffler\.toml"):
            serve(folder)
        assert os.umask(0o022) == 0o077
    finally:
        os.umask(before)
    assert not (folder / "shuffler.sqlite").exists()


def test_certificates_on_trial_are_accepted_whatever_the_umask(folder):
    before = os.umask(0o002)
    try:
        authority = Authority(folder.parent / "certificates")
        pair = authority.issue("a")
    finally:
        os.umask(before)
    tls = {"certificate": str(pair.certificate), "key": str(pair.key), "callers": str(authority.certificate)}
    check_folder(folder, terms_from({"name": "a", "callers": {}, "silos": {}, "tls": tls}))
