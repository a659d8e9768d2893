"""A hostile server, written from the documents alone, against real daemons with noise on, compiled as installed."""

from soak.attack import attack


def test_no_answer_goes_beyond_what_clip_and_noise_allow():
    outcome = attack(500, 0, quiet=True)
    assert not outcome.violations, outcome.violations[:3]
    assert outcome.answers >= 500
    algorithms = {name for name, _, _ in outcome.rows}
    assert {"alternate-spider", "prox-svrg", "prox-spider", "mb-sgd", "local-sgd", "mu2-sgd", "sgda"} <= algorithms
    # Far below the bound in every case would mean that nothing was attacked: noise alone reaches a third of it.
    assert max(row.worst for row in outcome.rows.values()) > 0.3
