"""PyTorch: its own nn.GRU and nn.LSTM, padded or packed; and a cell's equations in a loop, or compiled."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from .equations import CELLS, EPSILON, Functions
from .worker import Array, Missing, Prepared, Refused, Work, imported, streamed

# The arrays of a case by the names of nn.GRU's and nn.LSTM's parameters, but for layer and direction.
NAMES = {"weight_ih": "W", "weight_hh": "R", "bias_ih": "b", "bias_hh": "d"}
DEVICES = ("cpu", "cuda", "cuda-emulated")
Forward = Callable[[Any], Any]
Parameters = dict[str, Any]


def start(threads: int, options: dict[str, Any]) -> dict[str, str]:
    """Sets the threads, and returns PyTorch's version; raises `Missing` if torch.compile lacks a compiler."""
    torch = imported("torch", "pip install stepnet[torch]")
    torch.set_num_threads(threads)
    if options["form"] == "compiled":
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # else a pool of processes disturbs others
        compiler = imported("torch._inductor.cpp_builder", "torch.compile needs a newer torch")
        errors = imported("torch._inductor.exc", "torch.compile needs a newer torch")
        try:
            compiler.get_cpp_compiler()
        except errors.InvalidCxxCompiler as error:
            raise Missing(
                "torch.compile needs a C++ compiler, and there is none (apt install g++)"
            ) from error
    return {"torch": torch.__version__}


def device_of(torch: Any, work: Work) -> str:
    """Returns the device of the tensors of a case, on which float32 is multiplied as such, and not as TF32;
    raises `Refused` without a GPU for it.
    """
    if work.device != "cuda":
        return "cpu"
    if not torch.cuda.is_available():
        raise Refused("PyTorch finds no GPU here")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return work.device


def waited(torch: Any, work: Work, run: Callable[[], Any]) -> Callable[[], Any]:
    """Returns a function that runs another one, and waits for the GPU if the case is run on it."""
    if work.device != "cuda":
        return run

    def whole() -> Any:
        """Runs to the end, to be timed."""
        result = run()
        torch.cuda.synchronize()
        return result

    return whole


def functions(torch: Any) -> Functions:
    """Returns PyTorch's functions for the equations."""

    def normalized(x: Any) -> Any:
        """Normalizes the last axis to mean 0 and variance 1."""
        return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=EPSILON)

    return Functions(
        torch.sigmoid,
        torch.tanh,
        torch.exp,
        torch.log,
        torch.abs,
        torch.maximum,
        torch.einsum,
        normalized,
    )


def prepare(work: Work) -> Prepared:
    """Makes the case in the options' form, padded, packed, loop or compiled: returns the timed call."""
    torch = imported("torch", "")
    packed = is_packed(work)
    inputs = steps_of(torch, work, "values", packed)
    forward, _ = made(torch, work)

    def without_gradients() -> Any:
        """Runs forward under inference mode, to be timed."""
        with torch.inference_mode():
            return forward(inputs)

    def outputs(result: Any) -> Array:
        """Converts a result of the timed call to outputs, sequences end to end."""
        return end_to_end(torch, work, result)

    if work.options["form"] == "graph":
        return Prepared(captured(torch, work, without_gradients), outputs)
    return Prepared(waited(torch, work, without_gradients), outputs)


def captured(torch: Any, work: Work, run: Callable[[], Any]) -> Callable[[], Any]:
    """Captures a run as a CUDA graph; returns what replays it. Raises `Refused` without a GPU."""
    if work.device != "cuda":
        raise Refused("a loop is captured as a graph on a GPU alone")
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()

    def replayed() -> Any:
        """Runs the graph, to be timed; returns the tensors that it fills."""
        graph.replay()
        return result

    return waited(torch, work, replayed)


def prepare_training(work: Work) -> Prepared:
    """Makes the case in the form that the options name, with gradients: returns the timed call."""
    torch = imported("torch", "")
    packed = is_packed(work)
    if work.options["form"] == "graph":
        raise Refused("gradients are not captured")
    return trained(torch, work, *made(torch, work), packed)


def prepare_stream(work: Work) -> Prepared:
    """Makes a GRUCell or LSTMCell under inference mode: returns the timed run of a stream."""
    torch = imported("torch", "")
    if work.options["form"] != "padded":
        raise Refused("a step of a stream has nothing to pack, to loop over or to compile")
    work.needs(("gru", "lstm"), "torch.nn")
    _, parameters = library(torch.nn, torch, work)
    cell = {"gru": torch.nn.GRUCell, "lstm": torch.nn.LSTMCell}[work.cell](work.inputs, work.hidden)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in parameters.items()})

    def begin() -> Callable[[Any], Any]:
        """Starts a stream from zeros; returns the function of its step."""
        state: Any = None

        def step(x: Any) -> Any:
            """Runs one step of the stream, to be timed, and keeps the state."""
            nonlocal state
            state = cell(x, state)
            return state[0] if work.cell == "lstm" else state

        return step

    prepared = streamed(work, begin, torch.from_numpy)

    def within(function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function so that it runs under inference mode."""

        def run(*arguments: Any) -> Any:
            """Calls the function under inference mode."""
            with torch.inference_mode():
                return function(*arguments)

        return run

    return Prepared(within(prepared.run), within(prepared.outputs))


def made(torch: Any, work: Work) -> tuple[Forward, Parameters]:
    """Returns the function from inputs to outputs in the options' form, and parameters by name."""
    if work.options["form"] in ("loop", "compiled", "graph"):
        return loop(torch, work)
    if work.ragged and work.case.get("directions", 1) > 1 and work.options["form"] == "padded":
        raise Refused("the backward direction would begin in the padding; packed sequences are exact")
    return library(torch.nn, torch, work)


def is_packed(work: Work) -> bool:
    """Returns True if the options ask for packed sequences; raises `Refused` for a batch of one length."""
    packed = work.options["form"] == "packed"
    if packed and not work.ragged:
        raise Refused("nothing to pack: the batch is dense")
    return packed


def trained(torch: Any, work: Work, forward: Forward, parameters: Parameters, packed: bool) -> Prepared:
    """Makes forward and backward, with gradients of inputs and parameters: returns the timed call.

    forward: from inputs to outputs. packed: True for a PackedSequence.
    """
    inputs, cotangent = (steps_of(torch, work, name, packed) for name in ("values", "cotangents"))
    values = numbers(inputs)
    values.requires_grad_()
    asked = [values, *parameters.values()]
    for tensor in asked:
        tensor.requires_grad_()

    def run() -> list[Any]:
        """Runs forward and backward, to be timed; returns the gradients of inputs and parameters."""
        for tensor in asked:
            tensor.grad = None
        numbers(forward(inputs)).backward(numbers(cotangent))
        return [tensor.grad for tensor in asked]

    def gradients(result: list[Any]) -> dict[str, Array]:
        """Converts a result of the timed call to gradients by the names of the case."""
        of_inputs, *others = result
        if packed:
            of_inputs = inputs._replace(data=of_inputs)
        found = {"values": end_to_end(torch, work, of_inputs)}
        for parameter, gradient in zip(parameters, others, strict=True):
            name = named(parameter, work)
            if name in work.weights:
                found[name] = gradient.cpu().numpy()
                if name not in parameters and gradient.ndim > 1:  # nn's matrices are [gates hidden, inputs]
                    found[name] = found[name].T
        return found

    return Prepared(waited(torch, work, run), gradients)


def named(parameter: str, work: Work) -> str:
    """Returns the case's name of a parameter: "1.1.W" for weight_ih_l1_reverse; a cell's own name stays."""
    stem, found, place = parameter.rpartition("_l")
    if not found or stem not in NAMES:
        return parameter
    layer, _, reverse = place.partition("_")
    name = NAMES[stem]
    return name if work.is_one else f"{layer}.{1 if reverse else 0}.{name}"


def numbers(value: Any) -> Any:
    """Returns the tensor in a PackedSequence, or a padded tensor as it is."""
    return value.data if hasattr(value, "batch_sizes") else value


def steps_of(torch: Any, work: Work, name: str, packed: bool) -> Any:
    """Converts an array of the case to a padded tensor, time before batch, or a PackedSequence."""
    padded = torch.from_numpy(work.padded(time_major=True, name=name)).to(device_of(torch, work))
    if not packed:
        return padded
    return torch.nn.utils.rnn.pack_padded_sequence(
        padded, torch.from_numpy(work.lengths), enforce_sorted=False
    )


def end_to_end(torch: Any, work: Work, result: Any) -> Array:
    """Converts padded or packed outputs to an array [steps, ...], sequences end to end."""
    if hasattr(result, "batch_sizes"):
        result, _ = torch.nn.utils.rnn.pad_packed_sequence(result)
    return work.end_to_end(result.detach().cpu().numpy(), time_major=True)


def library(layers: Any, torch: Any, work: Work, **options: Any) -> tuple[Forward, Parameters]:
    """Makes a layer of torch.nn, or of the module `layers` with its own options; returns its function, and
    parameters by name.
    """
    work.needs(("gru", "lstm"), "torch.nn")
    layer = getattr(layers, work.cell.upper())(
        work.inputs,
        work.hidden,
        num_layers=work.case.get("layers", 1),
        bidirectional=work.case.get("directions", 1) > 1,
        dtype=getattr(torch, work.dtype),
        **options,
    ).eval()
    arrays: dict[str, Array] = {}
    for place, directions in enumerate(work.recurrences):
        for p, suffix in zip(directions, ("", "_reverse"), strict=False):
            own = {"W": p["W"].T, "R": p["R"].T, "b": p["b"], "d": p.get("d", np.zeros_like(p["b"]))}
            arrays |= {f"{name}_l{place}{suffix}": own[key] for name, key in NAMES.items()}
    layer.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in arrays.items()})
    layer.to(device_of(torch, work))

    def forward(inputs: Any) -> Any:
        """Runs the layer on padded or packed inputs; returns the outputs."""
        return layer(inputs)[0]

    return forward, dict(layer.named_parameters())


def loop(torch: Any, work: Work) -> tuple[Forward, Parameters]:
    """Makes a Python loop over padded steps; returns it, and its parameters by the case's names. What is
    computed from the inputs alone is one operation for all steps, ahead of it, as people write it. Compiled,
    if the options say so.
    """
    cell, f = CELLS[work.cell], functions(torch)
    there = device_of(torch, work)
    layers = [
        [{name: torch.from_numpy(array).to(there) for name, array in p.items()} for p in both]
        for both in work.recurrences
    ]
    step, ahead = cell.step, cell.ahead
    if work.options["form"] == "compiled":
        # What earlier cases compiled is forgotten: past a number of variants torch, saying nothing, compiles
        # no more.
        torch._dynamo.reset()
        step, ahead = torch.compile(step, dynamic=False), torch.compile(ahead, dynamic=False)

    def recurrence(inputs: Any, p: Any) -> Any:
        """Runs one layer in one direction with parameters p, step by step; returns the outputs."""
        count, rows, features = inputs.shape
        computed: Any = ahead(inputs.reshape(count * rows, features), p, f)
        is_dict = hasattr(computed, "keys")
        every: dict[str, Any] = computed if is_dict else {"": computed}
        parts = {name: value.reshape(count, rows, *value.shape[1:]) for name, value in every.items()}
        memory = cell.begin(work.hidden, lambda shape: inputs.new_zeros(rows, *shape))
        outputs: list[Any] = []
        for pieces in zip(*parts.values(), strict=True):
            a: Any = dict(zip(parts, pieces, strict=True)) if is_dict else pieces[0]
            output, memory = step(a, memory, p, f)
            outputs.append(output)
        return torch.stack(outputs)

    turned = torch.from_numpy(work.turned()[..., None]).to(there)

    def forward(inputs: Any) -> Any:
        """Runs all layers, each in its directions; returns the outputs [time, batch, features]."""
        for both in layers:
            made = [recurrence(inputs, both[0])]
            if len(both) > 1:
                back = recurrence(torch.take_along_dim(inputs, turned, 0), both[1])
                made.append(torch.take_along_dim(back, turned, 0))
            inputs = torch.cat(made, -1) if len(made) > 1 else made[0]
        return inputs

    return forward, work.named(layers)
