"""Steps with a matrix as people write them: all run in chunks of steps. In emulation, beside the interpreter
in float64.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.plan import with_early_reads
from stepnet.compiler.targets.cuda import loop_of
from tests.compiler.targets.cuda.matrix_steps import RAGGED, MatrixStep
from tests.compiler.targets.cuda.tensor_loops import DEVICE

Array = np.ndarray
BY_CHUNKS = "steps at a time"


def added(S: Array, x: dict[str, Array]) -> Array:
    """An outer product is added."""
    return S + x["k"][:, :, None] * x["v"][:, None, :]


def summed(S: Array, x: dict[str, Array], name: str) -> Array:
    """A sum over keys."""
    return (S * x[name][:, :, None]).sum(1)


WRITTEN: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "an outer product by @": lambda S, x: (S + x["k"][:, :, None] @ x["v"][:, None, :], "sum"),
    "a read by @": lambda S, x: (added(S, x), "row"),
    "a read by @, of the transpose": lambda S, x: (added(S, x), "column"),
    "a part taken away": lambda S, x: (added(S - 0.1 * S, x), "row"),
    "parts of keys taken away": lambda S, x: (added(S - x["keep"][:, :, None] * S - 0.1 * S, x), "sum"),
    "a quotient": lambda S, x: (added(S, x) / 2, "sum"),
    "on the way to what is written": lambda S, x: (
        S + 0.1 * (x["k"][:, :, None] * x["v"][:, None, :] - S), "sum"),
    "a delta rule by @": lambda S, x: (
        S + x["k"][:, :, None] @ (x["v"][:, None, :] - x["k"][:, None, :] @ S) / 2, "row"),
}  # fmt: skip
READS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda S, x: summed(S, x, "q"),
    "row": lambda S, x: (x["q"][:, None, :] @ S)[:, 0],
    "column": lambda S, x: (S.swapaxes(1, 2) @ x["q"][:, :, None])[:, :, 0],
}


def written_so(name: str) -> MatrixStep:
    """A step that is written in one of these ways."""

    def step(x: Any, S: Any, p: Any) -> Any:
        """Computes a step."""
        S, read = WRITTEN[name](S, x)
        return READS[read](S, x), S

    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("q", "k", "v", "keep"), (32,))
    return MatrixStep(step, (32, 32), shapes, unit="k", rates="keep")


@pytest.mark.parametrize("name", WRITTEN)
def test_steps_run_in_chunks_however_they_are_written(name: str) -> None:
    step = written_so(name)
    assert BY_CHUNKS in loop_of(step.plan(), 16, DEVICE).reason
    if name in ("parts of keys taken away", "a delta rule by @"):
        outputs, final = step.rnn()(step.sequences(), step.initial(), engine="cuda-emulated")
        x = {n: each.with_values(each.values.astype("f8")) for n, each in step.sequences().items()}
        expected, last = step.rnn()(x, step.initial().astype("f8"), engine="interpret")
        for found, right in ((outputs.values, expected.values), (final, last)):
            assert_close(found, right, max(RAGGED), 64)


def test_norms_and_projections_of_what_is_read_run_behind_the_chunks() -> None:
    """So do their gradients, in chunks too."""
    weights = np.random.default_rng(4).normal(size=(64, 20))

    def step(x: Any, S: Any, p: Any) -> Any:
        """Computes a step of heads that decay, whose outputs are normalised, gated and projected."""
        S = S * x["g"][:, :, None, None] + x["k"][..., :, None] * x["v"][..., None, :]
        y = (S * x["q"][..., None]).sum(-2)
        y = y / np.sqrt((y * y).mean(-1)[..., None] + 0.1) * np.tanh(x["v"])
        return y.reshape(-1, 64) @ p, S

    shapes: dict[str, tuple[int, ...]] = {**dict.fromkeys("qkv", (2, 32)), "g": (2,)}
    found = list[dict[str, Array]]()
    for engine, dtype in (("interpret", "f8"), ("cuda-emulated", "f4")):
        made = MatrixStep(step, (2, 32, 32), shapes, weights.astype(dtype), unit="k", rates="g")
        rnn, x = made.rnn(), {name: each[None].astype(dtype) for name, each in made.values(20).items()}
        (outputs, _), backward = (run := sn.vjp(rnn))(x, engine=engine)
        slopes = backward(np.ones_like(outputs), None)
        found.append({"outputs": outputs, "params": slopes.params, **slopes.inputs})
    for name, right in found[0].items():
        assert_close(found[1][name], right, 20, 32 * 64)
    for said in (rnn.explain("cuda", rows=16, steps=64), run.explain(engine="cuda", rows=16, steps=64)):
        assert BY_CHUNKS in " ".join(str(said).split())


def test_one_head_is_a_head() -> None:
    def step(x: Any, S: Any, p: Any) -> Any:
        """A linear attention by @, whose matrix has an axis of one head."""
        S = S + x["k"][..., :, None] @ x["v"][..., None, :]
        return (x["q"][..., None, :] @ S)[..., 0, :], S

    plan = MatrixStep(step, (1, 32, 32), {"q": (1, 32), "k": (1, 32), "v": (1, 32)}).plan()
    assert BY_CHUNKS in loop_of(plan, 16, DEVICE).reason


def test_a_matrix_that_is_multiplied_by_a_matrix_runs_step_by_step() -> None:
    def step(x: Any, S: Any, p: Any) -> Any:
        """Each row of the next memory reads all rows."""
        S = (np.eye(16, dtype="f4") - x["k"][:, :, None] * x["k"][:, None, :]) @ S
        return S.sum(1), added(S, x)

    plan = MatrixStep(step, (16, 32), {"k": (16,), "v": (32,)}).plan()
    assert BY_CHUNKS not in loop_of(plan, 16, DEVICE).reason
    assert with_early_reads(plan.recurrence.recur) == "the next memory is not linear in the one before"
