"""PyTorch: its own nn.GRU and nn.LSTM, padded or packed; and a cell's equations in a loop, or compiled."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from .equations import EQUATIONS
from .worker import Array, Missing, Prepared, Refused, Work, imported


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
    form = work.options["form"]
    if form == "packed" and not work.ragged:
        raise Refused("nothing to pack: the batch is dense")
    if form in ("loop", "compiled"):
        run = loop(torch, work, compiled=form == "compiled")
    elif work.cell not in ("gru", "lstm"):
        raise Refused(f"torch.nn has no {work.cell} cell")
    else:
        run = library(torch, work, packed=form == "packed")

    def without_gradients() -> Any:
        with torch.inference_mode():
            return run()

    def outputs(result: Any) -> Array:
        if form == "packed":
            result, _ = torch.nn.utils.rnn.pad_packed_sequence(result)
        return work.end_to_end(result.numpy(), time_major=True)

    return Prepared(without_gradients, outputs)


def library(torch: Any, work: Work, packed: bool) -> Callable[[], Any]:
    """torch.nn's own layer, time before batch, over padded inputs, or a PackedSequence made beforehand."""
    layer = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[work.cell](
        work.inputs, work.hidden, dtype=getattr(torch, work.dtype)
    ).eval()
    p = work.weights
    found = {"weight_ih_l0": p["W"].T, "weight_hh_l0": p["R"].T, "bias_ih_l0": p["b"]}
    found["bias_hh_l0"] = p.get("d", np.zeros_like(p["b"]))
    layer.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in found.items()})
    inputs = torch.from_numpy(work.padded(time_major=True))
    if packed:
        lengths = torch.from_numpy(work.arrays["lengths"])
        inputs = torch.nn.utils.rnn.pack_padded_sequence(inputs, lengths, enforce_sorted=False)
    return lambda: layer(inputs)[0]


def loop(torch: Any, work: Work, compiled: bool) -> Callable[[], Any]:
    """A Python loop over padded steps; the products over inputs are one, ahead of it, as people write it."""
    p = {name: torch.from_numpy(array) for name, array in work.weights.items()}
    inputs = torch.from_numpy(work.padded(time_major=True))
    equations = EQUATIONS[work.cell]

    def step(a: Any, memory: Any) -> tuple[Any, Any]:
        return equations(a, memory, p, torch)

    def ahead(x: Any) -> Any:
        return x @ p["W"] + p["b"]

    if compiled:
        # What earlier cases compiled is forgotten: past a number of variants torch, saying nothing, compiles
        # no more.
        torch._dynamo.reset()
        step, ahead = torch.compile(step, dynamic=False), torch.compile(ahead, dynamic=False)

    def run() -> Any:
        zeros = torch.zeros(inputs.shape[1], work.hidden, dtype=inputs.dtype)
        memory: Any = {"h": zeros, "c": zeros} if work.cell == "lstm" else zeros
        outputs: list[Any] = []
        for a in ahead(inputs):
            output, memory = step(a, memory)
            outputs.append(output)
        return torch.stack(outputs)

    return run
