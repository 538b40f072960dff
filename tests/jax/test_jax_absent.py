"""`stepnet.jax` where JAX is not installed, and models with arrays like JAX's; tests/peers has JAX itself."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import stepnet as sn
from stepnet.errors import InputError


def run(code: str) -> str:
    """The output of a fresh Python."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_jax_it_says_how_to_get_it_each_time() -> None:
    code = """
import sys
sys.modules["jax"] = None
import numpy as np
import stepnet
for _ in range(2):
    try:
        import stepnet.jax
    except stepnet.StepnetError as error:
        print(type(error).__name__, error)
rnn = stepnet.RNN(lambda x, h, _: (h + x, h + x), memory=())
print(rnn(np.array([[1.0, 2.0]]))[0].tolist())
"""
    first, second, outputs = run(code).splitlines()
    assert first == second
    assert first.startswith("InputError stepnet.jax needs JAX 0.7 or later (")
    assert first.endswith("): pip install -U jax")
    assert outputs == "[[1.0, 3.0]]"


def test_stepnet_imports_no_jax() -> None:
    assert run("import sys, stepnet; print('jax' in sys.modules)") == "False\n"


class LikeJax:
    """An array with as much of JAX's as stepnet asks for."""

    def __init__(self, array: Any, platform: str = "cpu") -> None:
        self.array, self.device = array, platform
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array

    def __len__(self) -> int:
        return len(self.array)

    def devices(self) -> list[Any]:
        return [SimpleNamespace(platform=self.device)]


class LikeTracer(LikeJax):
    """An array without numbers."""


@pytest.fixture
def _jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module as JAX is, as if the caller had imported it."""
    numpy = SimpleNamespace(from_dlpack=LikeJax, asarray=LikeJax)
    jax = SimpleNamespace(Array=LikeJax, numpy=numpy, core=SimpleNamespace(Tracer=LikeTracer))
    monkeypatch.setitem(sys.modules, "jax", jax)


TOTAL = sn.RNN(lambda x, h, _: (h + x, h + x), memory=2)
X = np.arange(12.0).reshape(2, 3, 2)


@pytest.mark.usefixtures("_jax")
def test_results_are_of_the_kind_of_the_inputs() -> None:
    right = TOTAL(X)
    for _ in range(3):
        made = TOTAL(LikeJax(X))
        for one, other in zip(made, right, strict=True):
            assert isinstance(one, LikeJax)
            np.testing.assert_array_equal(one.array, other)
    assert isinstance(TOTAL(X, initial=LikeJax(np.zeros((2, 2))))[0], np.ndarray)


@pytest.mark.usefixtures("_jax")
def test_a_ragged_keeps_the_kind_of_its_values() -> None:
    values = X.reshape(6, 2)
    ragged = sn.Ragged(LikeJax(values), (np.array([0, 4, 6]),))  # type: ignore[arg-type]
    outputs, final = TOTAL(ragged)
    right, _ = TOTAL(sn.Ragged(values, ragged.offsets))
    assert isinstance(outputs.values, LikeJax)
    assert isinstance(final, LikeJax)
    np.testing.assert_array_equal(outputs.values.array, right.values)


@pytest.mark.usefixtures("_jax")
def test_arrays_without_numbers_or_on_a_device_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"an input is float64\[2, 3, 2\] that JAX traces \(jit, grad, vmap\)"
    ):
        TOTAL(LikeTracer(X))
    with pytest.raises(InputError, match=r"values is float64\[2, 3, 2\] that JAX traces"):
        sn.Ragged(LikeTracer(X), (np.array([0, 2]),))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r'of type LikeJax, is on a GPU, .* give engine="cuda"'):
        TOTAL(LikeJax(X, "gpu"))
    with pytest.raises(InputError, match=r"memory `h` is an array of JAX on gpu; give jax.device_get"):
        TOTAL(X, LikeJax(X[:, 0], "gpu"))
