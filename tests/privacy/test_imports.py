"""The accounting package stands alone: no jax, and nothing heavy before it is needed."""

import subprocess
import sys

import pytest

import tacit.privacy


def modules_after(code):
    script = f"{code}\nimport sys\nprint('\\n'.join(sys.modules))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in out.stdout.split()} | set(out.stdout.split())


def test_importing_is_light():
    loaded = modules_after("import tacit.privacy")
    assert "tacit.privacy.accountant" in loaded
    for heavy in ("jax", "dp_accounting", "matplotlib", "scipy.stats", "scipy.signal"):
        assert heavy not in loaded


@pytest.mark.parametrize("module", ["binomial", "theorems"])
def test_pricing_never_imports_jax(module):
    loaded = modules_after(
        f"import os; os.environ['TACIT_CACHE'] = ''\n"
        f"import tacit.privacy.{module}\n"
        "from tacit.privacy import Event, price\n"
        "e = Event(kind='g', noise_multiplier=2.0, count=3, records=50, batch=5, sampling='poisson')\n"
        "price([e], delta=1e-6)\n"
    )
    assert "tacit.privacy.lattice" in loaded
    assert not {"jax", "dp_accounting"} & loaded


def test_everything_promised_is_exported():
    for name in tacit.privacy.__all__:
        assert getattr(tacit.privacy, name) is not None
