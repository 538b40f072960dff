"""Makes torch.tar.xz and torch.json: models as PyTorch saves them, with and without their architecture, and
what PyTorch computes.

Runs in the environment of the tests: python tests/conformance/data/make_torch.py
"""

import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from recording import Corpus
from safetensors.torch import save_file
from torch import nn
from torch_making import about, around, batch, called, filled, operators
from torch_models import MODELS

Saved = dict[str, str]  # the operators of the graph that the file holds


def exported(module: nn.Module, inputs: tuple[torch.Tensor, ...], path: Path) -> Saved:
    """torch.export.save, with seven steps and three sequences."""
    program = torch.export.export(module, inputs)
    torch.export.save(program, path)
    return operators(str(node.target) for node in program.graph.nodes if node.op == "call_function")


def traced(module: nn.Module, inputs: tuple[torch.Tensor, ...], path: Path) -> Saved:
    """torch.jit.trace."""
    made = torch.jit.trace(module, inputs)
    made.save(path)
    return operators(node.kind() for node in made.inlined_graph.nodes())


def scripted(module: nn.Module, inputs: tuple[torch.Tensor, ...], path: Path) -> Saved:
    """torch.jit.script."""
    made = torch.jit.script(module)
    made.save(path)
    graph = made.graph.copy()
    torch._C._jit_pass_inline(graph)
    return operators(node.kind() for node in graph.nodes())


def pickled(module: nn.Module, inputs: tuple[torch.Tensor, ...], path: Path) -> Saved:
    """torch.save of the module."""
    torch.save(module, path)
    kind = type(module).__name__  # what stands around is in the code of the user's class
    return {} if isinstance(module, nn.RNNBase) else {kind: kind}


def state(module: nn.Module, inputs: tuple[torch.Tensor, ...], path: Path) -> Saved:
    """torch.save of the state dict."""
    torch.save(module.state_dict(), path)
    return {}


def checkpoint(module: nn.Module, inputs: tuple[torch.Tensor, ...], path: Path) -> Saved:
    """torch.save of a dict of the state dict, the optimizer's state and the epoch."""
    optimizer = torch.optim.Adam(module.requires_grad_().parameters())
    saved = {"model_state_dict": module.state_dict(), "optimizer_state_dict": optimizer.state_dict()}
    torch.save({"epoch": 3, **saved}, path)
    module.requires_grad_(False)
    return {}


def tensors(module: nn.Module, inputs: tuple[torch.Tensor, ...], path: Path) -> Saved:
    """safetensors.torch.save_file of the state dict."""
    save_file({key: array.contiguous() for key, array in module.state_dict().items()}, path)
    return {}


Saving = Callable[[nn.Module, tuple[torch.Tensor, ...], Path], Saved]
KINDS: dict[str, tuple[Saving, str, tuple[str, ...]]] = {
    "pt2": (exported, ".pt2", ("lstm_steps", "gru", "by_last_state", "tagger", "voice", "residual")),
    "traced": (traced, ".pt", ("lstm_steps", "voice", "speech")),
    "scripted": (scripted, ".pt", ("gru_both_steps", "tagger")),
    "pickled": (pickled, ".pt", ("lstm_stack_both", "gru", "lines", "by_last_state")),
    "state": (state, ".pt", ("lstm_projected", "by_last_output", "packed")),
    "checkpoint": (checkpoint, ".pth", ("residual",)),
    "safetensors": (tensors, ".safetensors", ("rnn_tanh", "lstm_without_bias", "tagger", "conditioned")),
}
"""The function that saves a model, the suffix, and the models, by the kind of file."""


def add(corpus: Corpus, kind: str, name: str) -> None:
    """Saves one model as one kind of file, and runs it."""
    save, suffix, _ = KINDS[kind]
    made, module = MODELS[name], filled(name)
    given = batch(name, made)
    path = corpus.folder / f"{name}_{kind}{suffix}"
    stands = {**around(module), **save(module, tuple(map(torch.from_numpy, given.values())), path)}
    fixed = kind == "pt2"
    corpus.add(
        lambda given: called(module, made, given),
        given,
        results="padded" if fixed else "padded, alone",
        name=f"{name}_{kind}",
        kind=kind,
        file=path.name,
        about=f"{about(name)}; {(save.__doc__ or '').rstrip('.')}",
        around=stands,
        inputs=made.inputs,
        axes=made.axes,
        limits="three sequences of 7 steps, as torch.export fixed them" if fixed else "",
    )


def main() -> None:
    warnings.simplefilter("ignore")
    corpus = Corpus("PyTorch", torch.__version__)
    for kind, (_, _, names) in KINDS.items():
        for name in names:
            add(corpus, kind, name)
    corpus.pack("torch")


if __name__ == "__main__":
    main()
