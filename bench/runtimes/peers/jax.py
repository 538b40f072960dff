"""JAX: a cell's equations in a `lax.scan`, compiled, over padded inputs."""

import os
from typing import Any, NamedTuple

from .equations import EQUATIONS
from .worker import Array, Prepared, Work, imported


class Functions(NamedTuple):
    """The functions that the equations need."""

    sigmoid: Any
    tanh: Any


def start(threads: int, options: dict[str, Any]) -> dict[str, str]:
    """The version. It takes as many threads as the process may use processors."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_ENABLE_X64"] = "1"
    return {"jax": imported("jax", "make bench-peers").__version__}


def forward_of(jax: Any, work: Work) -> Any:
    """The function from weights and padded inputs [time, batch, inputs] to the outputs."""
    numpy, equations = jax.numpy, EQUATIONS[work.cell]
    functions = Functions(jax.nn.sigmoid, numpy.tanh)

    def forward(p: Any, inputs: Any) -> Any:
        zeros = numpy.zeros((inputs.shape[1], work.hidden), inputs.dtype)
        begin = {"h": zeros, "c": zeros} if work.cell == "lstm" else zeros

        def step(memory: Any, a: Any) -> tuple[Any, Any]:
            output, memory = equations(a, memory, p, functions)
            return memory, output

        return jax.lax.scan(step, begin, inputs @ p["W"] + p["b"])[1]

    return forward


def prepare(work: Work) -> Prepared:
    """A compiled function of the weights and the inputs."""
    jax = imported("jax", "")
    run = jax.jit(forward_of(jax, work))
    p, inputs = (jax.device_put(one) for one in (work.weights, work.padded(time_major=True)))

    def outputs(result: Any) -> Array:
        return work.end_to_end(jax.device_get(result), time_major=True)

    return Prepared(lambda: run(p, inputs).block_until_ready(), outputs)


def prepare_training(work: Work) -> Prepared:
    """A compiled function that gives the outputs and the gradients."""
    jax = imported("jax", "")
    forward = forward_of(jax, work)

    def gradients(p: Any, inputs: Any, cotangents: Any) -> Any:
        outputs, backward = jax.vjp(forward, p, inputs)
        return outputs, backward(cotangents)

    run = jax.jit(gradients)
    arrays = work.weights, work.padded(time_major=True), work.padded(time_major=True, name="cotangents")
    given = [jax.device_put(one) for one in arrays]

    def answers(result: Any) -> dict[str, Array]:
        _, (of_weights, of_inputs) = jax.device_get(result)
        return {"values": work.end_to_end(of_inputs, time_major=True), **of_weights}

    return Prepared(lambda: jax.block_until_ready(run(*given)), answers)
