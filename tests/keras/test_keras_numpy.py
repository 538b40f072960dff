"""On Keras' numpy backend, its own cells are predicted by stepnet: in a process of its own, as Keras has one
backend in each.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stepnet

for module in ("scipy", "jax"):
    pytest.importorskip(module, reason=f"{module} is missing, which Keras' numpy backend needs")

PROGRAM = """
import itertools, keras, numpy as np, stepnet.keras
random = np.random.default_rng(0)
x = random.normal(size=(4, 6, 3)).astype("float32")
masks = [None, np.arange(6) < np.array([[6], [3], [0], [1]]), random.random((4, 6)) > 0.5]
every = itertools.product(("SimpleRNN", "GRU", "LSTM"), (True, False), (True, False), masks)
for kind, sequences, backwards, mask in every:
    options = {"return_sequences": sequences, "go_backwards": backwards, "return_state": True}
    theirs, ours = (getattr(where, kind)(5, **options) for where in (keras.layers, stepnet.keras))
    theirs.build(x.shape), ours.build(x.shape)
    for round in range(2):
        theirs.set_weights([random.normal(size=w.shape) / 2 for w in theirs.get_weights()])
        ours.set_weights(theirs.get_weights())
        for one, other in zip(ours(x, mask=mask), theirs(x, mask=mask), strict=True):
            np.testing.assert_allclose(one, other, atol=2e-6)
print(*stepnet.keras.counters())
"""


def test_predictions_on_the_numpy_backend():
    source = str(Path(stepnet.__file__).parents[1])
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        capture_output=True,
        text=True,
        env={**os.environ, "KERAS_BACKEND": "numpy", "PYTHONPATH": source},
        check=False,
    )
    assert run.stdout.split() == ["72", "0"], run.stderr
