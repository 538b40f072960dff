"""PyTorch: its own nn.GRU and nn.LSTM, padded or packed; and a cell's equations in a loop, or compiled."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from .equations import EQUATIONS
from .worker import Array, Missing, Prepared, Refused, Work, imported

# The arrays of a case by the names of nn.GRU's and nn.LSTM's parameters.
NAMES = {"weight_ih_l0": "W", "weight_hh_l0": "R", "bias_ih_l0": "b", "bias_hh_l0": "d"}


def start(threads: int, options: dict[str, Any]) -> dict[str, str]:
    """The version; the threads are set."""
    torch = imported("torch", "pip install stepnet[torch]")
    torch.set_num_threads(threads)
    if options["form"] == "compiled":
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # else a pool of processes stays beside the others
        compiler = imported("torch._inductor.cpp_builder", "torch.compile needs a newer torch")
        errors = imported("torch._inductor.exc", "torch.compile needs a newer torch")
        try:
            compiler.get_cpp_compiler()
        except errors.InvalidCxxCompiler as error:
            raise Missing(
                "torch.compile needs a C++ compiler, and there is none (apt install g++)"
            ) from error
    return {"torch": torch.__version__}


def prepare(work: Work) -> Prepared:
    """The case in the form that the options name: padded, packed, loop, or compiled."""
    torch = imported("torch", "")
    packed, form = is_packed(work), work.options["form"]
    inputs = steps_of(torch, work, "values", packed)
    forward, _ = loop(torch, work) if form in ("loop", "compiled") else library(torch.nn, torch, work)

    def without_gradients() -> Any:
        with torch.inference_mode():
            return forward(inputs)

    def outputs(result: Any) -> Array:
        return end_to_end(torch, work, result)

    return Prepared(without_gradients, outputs)


def prepare_training(work: Work) -> Prepared:
    """The same with gradients of the inputs and of all parameters."""
    torch = imported("torch", "")
    is_loop = work.options["form"] in ("loop", "compiled")
    made = loop(torch, work) if is_loop else library(torch.nn, torch, work)
    return trained(torch, work, *made, is_packed(work))


def is_packed(work: Work) -> bool:
    """Whether sequences are packed; refuses to pack those of one length."""
    packed = work.options["form"] == "packed"
    if packed and not work.ragged:
        raise Refused("nothing to pack: the batch is dense")
    return packed


Forward = Callable[[Any], Any]
Parameters = dict[str, Any]


def trained(torch: Any, work: Work, forward: Forward, parameters: Parameters, packed: bool) -> Prepared:
    """Forward and backward, with the gradients of the inputs and of all parameters, anew in each run."""
    inputs, cotangent = (steps_of(torch, work, name, packed) for name in ("values", "cotangents"))
    values = numbers(inputs)
    values.requires_grad_()
    asked = [values, *parameters.values()]
    for tensor in asked:
        tensor.requires_grad_()

    def run() -> list[Any]:
        for tensor in asked:
            tensor.grad = None
        numbers(forward(inputs)).backward(numbers(cotangent))
        return [tensor.grad for tensor in asked]

    def gradients(result: list[Any]) -> dict[str, Array]:
        of_inputs, *others = result
        if packed:
            of_inputs = inputs._replace(data=of_inputs)
        found = {"values": end_to_end(torch, work, of_inputs)}
        for (name, parameter), gradient in zip(parameters.items(), others, strict=True):
            name = NAMES.get(name, name)
            if name in work.weights:
                transposed = tuple(parameter.shape) != work.weights[name].shape
                found[name] = gradient.numpy().T if transposed else gradient.numpy()
        return found

    return Prepared(run, gradients)


def numbers(value: Any) -> Any:
    """The tensor of a PackedSequence, or of a padded one."""
    return value.data if hasattr(value, "batch_sizes") else value


def steps_of(torch: Any, work: Work, name: str, packed: bool) -> Any:
    """An array that has a row for each step as a padded tensor, time before batch, or a PackedSequence."""
    padded = torch.from_numpy(work.padded(time_major=True, name=name))
    if not packed:
        return padded
    lengths = torch.from_numpy(work.arrays["lengths"])
    return torch.nn.utils.rnn.pack_padded_sequence(padded, lengths, enforce_sorted=False)


def end_to_end(torch: Any, work: Work, result: Any) -> Array:
    """[steps, ...] of what is padded, or packed."""
    if hasattr(result, "batch_sizes"):
        result, _ = torch.nn.utils.rnn.pad_packed_sequence(result)
    return work.end_to_end(result.detach().numpy(), time_major=True)


def library(layers: Any, torch: Any, work: Work) -> tuple[Forward, Parameters]:
    """A layer of torch.nn, or of a module that has the same ones, and its parameters by name."""
    if work.cell not in ("gru", "lstm"):
        raise Refused(f"torch.nn has no {work.cell} cell")
    layer = getattr(layers, work.cell.upper())(
        work.inputs, work.hidden, dtype=getattr(torch, work.dtype)
    ).eval()
    p = work.weights
    arrays = {"weight_ih_l0": p["W"].T, "weight_hh_l0": p["R"].T, "bias_ih_l0": p["b"]}
    arrays["bias_hh_l0"] = p.get("d", np.zeros_like(p["b"]))
    layer.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in arrays.items()})
    return lambda inputs: layer(inputs)[0], dict(layer.named_parameters())


def loop(torch: Any, work: Work) -> tuple[Forward, Parameters]:
    """A Python loop over padded steps, and its parameters by name; the products over inputs are one, ahead of
    it, as people write it. Compiled, if the options say so.
    """
    p = {name: torch.from_numpy(array) for name, array in work.weights.items()}
    equations = EQUATIONS[work.cell]

    def step(a: Any, memory: Any) -> tuple[Any, Any]:
        return equations(a, memory, p, torch)

    def ahead(x: Any) -> Any:
        return x @ p["W"] + p["b"]

    if work.options["form"] == "compiled":
        # What earlier cases compiled is forgotten: past a number of variants torch, saying nothing, compiles
        # no more.
        torch._dynamo.reset()
        step, ahead = torch.compile(step, dynamic=False), torch.compile(ahead, dynamic=False)

    def forward(inputs: Any) -> Any:
        zeros = torch.zeros(inputs.shape[1], work.hidden, dtype=inputs.dtype)
        memory: Any = {"h": zeros, "c": zeros} if work.cell == "lstm" else zeros
        outputs: list[Any] = []
        for a in ahead(inputs):
            output, memory = step(a, memory)
            outputs.append(output)
        return torch.stack(outputs)

    return forward, p
