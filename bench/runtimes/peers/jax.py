"""JAX: a cell's equations in a `lax.scan`, compiled, over padded inputs."""

import os
from collections.abc import Callable
from typing import Any

from .equations import CELLS, functions_like_numpy
from .worker import Array, Prepared, Work, imported, streamed


def start(threads: int, options: dict[str, Any]) -> dict[str, str]:
    """Imports JAX, and returns its version. It takes as many threads as the process may use processors."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_ENABLE_X64"] = "1"
    return {"jax": imported("jax", "make bench-peers").__version__}


def forward_of(jax: Any, work: Work) -> Any:
    """Returns the function from weights and padded inputs [time, batch, inputs] to the outputs."""
    numpy, cell = jax.numpy, CELLS[work.cell]
    functions = functions_like_numpy(numpy, jax.nn.sigmoid)
    turned = work.turned()[..., None]

    def recurrence(p: Any, inputs: Any) -> Any:
        """Runs one layer in one direction with parameters p by `lax.scan`; returns its outputs."""
        count, rows, features = inputs.shape
        every = cell.ahead(inputs.reshape(count * rows, features), p, functions)

        def by_step(value: Any) -> Any:
            """Splits the first axis, of all rows of all steps, into steps and rows, for `lax.scan`."""
            return value.reshape(count, rows, *value.shape[1:])

        def step(memory: Any, a: Any) -> tuple[Any, Any]:
            """Computes one step of the cell in the form that `lax.scan` takes."""
            output, memory = cell.step(a, memory, p, functions)
            return memory, output

        begin = cell.begin(work.hidden, lambda shape: numpy.zeros((rows, *shape), inputs.dtype))
        return jax.lax.scan(step, begin, jax.tree.map(by_step, every))[1]

    def forward(layers: Any, inputs: Any) -> Any:
        """Runs all layers, each in its directions; returns the outputs [time, batch, features]."""
        for both in layers:
            made = [recurrence(both[0], inputs)]
            if len(both) > 1:
                there = recurrence(both[1], numpy.take_along_axis(inputs, turned, 0))
                made.append(numpy.take_along_axis(there, turned, 0))
            inputs = numpy.concatenate(made, -1) if len(made) > 1 else made[0]
        return inputs

    return forward


def prepare(work: Work) -> Prepared:
    """Compiles the case for JAX: returns the timed call, and the conversion of its result to outputs."""
    jax = imported("jax", "")
    run = jax.jit(forward_of(jax, work))
    p, inputs = (jax.device_put(one) for one in (work.recurrences, work.padded(time_major=True)))

    def outputs(result: Any) -> Array:
        """Converts a result of the timed call to outputs, sequences end to end."""
        return work.end_to_end(jax.device_get(result), time_major=True)

    return Prepared(lambda: run(p, inputs).block_until_ready(), outputs)


def prepare_stream(work: Work) -> Prepared:
    """Compiles one step for JAX, whose memory stays on the device: returns the timed run of a stream."""
    jax = imported("jax", "")
    cell, p = CELLS[work.cell], jax.device_put(work.weights)
    functions = functions_like_numpy(jax.numpy, jax.nn.sigmoid)

    def once(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
        """Computes one step of the cell: output and memory, to be compiled."""
        return cell.step(cell.ahead(x, p, functions), memory, p, functions)

    run = jax.jit(once)

    def begin() -> Callable[[Any], Any]:
        """Starts a stream from zeros; returns the function of its step."""
        memory = cell.begin(work.hidden, lambda shape: jax.numpy.zeros((work.batch, *shape), work.dtype))

        def step(x: Any) -> Any:
            """Runs one step of the stream, to be timed, and keeps the memory."""
            nonlocal memory
            output, memory = run(x, memory, p)
            return output.block_until_ready()

        return step

    return streamed(work, begin, jax.device_put)


def prepare_training(work: Work) -> Prepared:
    """Compiles outputs and gradients for JAX: returns the timed call, and the conversion of its result."""
    jax = imported("jax", "")
    forward = forward_of(jax, work)

    def gradients(p: Any, inputs: Any, cotangents: Any) -> Any:
        """Computes the outputs and all gradients, to be compiled."""
        outputs, backward = jax.vjp(forward, p, inputs)
        return outputs, backward(cotangents)

    run = jax.jit(gradients)
    arrays = work.recurrences, work.padded(time_major=True), work.padded(time_major=True, name="cotangents")
    given = [jax.device_put(one) for one in arrays]

    def answers(result: Any) -> dict[str, Array]:
        """Converts a result of the timed call to gradients by the names of the case."""
        _, (of_weights, of_inputs) = jax.device_get(result)
        return {"values": work.end_to_end(of_inputs, time_major=True), **work.named(of_weights)}

    return Prepared(lambda: jax.block_until_ready(run(*given)), answers)
