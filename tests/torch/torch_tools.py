"""Tools of PyTorch applied to modules of stepnet, one function per row of the table in docs/torch_tools.md.

Each takes a kind of module, and returns pairs of what the tool gave and what the module itself gives.
"""

import copy
import gc
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.ao.quantization import QConfigMapping, quantize_dynamic, quantize_fx
from torch.ao.quantization.qconfig import default_dynamic_qconfig
from torch.autograd import graph
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import parametrizations, prune
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import stepnet as sn
import stepnet.torch

STEPS, ROWS, INPUTS, HIDDEN = 5, 2, 3, 4
Made = Any
Pairs = list[tuple[Any, Any]]


class Cell(torch.nn.Module):
    """A cell with layers of torch.nn."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.h = torch.nn.Linear(INPUTS, HIDDEN), torch.nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.x(x) + self.h(h))


def layer() -> Any:
    return stepnet.torch.GRU(INPUTS, HIDDEN)


def recurrence() -> Any:
    return stepnet.torch.Recurrence(Cell(), (torch.zeros(1, INPUTS), torch.zeros(1, HIDDEN)))


def scan() -> Any:
    def step(x: Any, h: Any, params: Any) -> Any:
        h = np.tanh(x @ params["W"] + h @ params["R"])
        return h, h

    random = np.random.default_rng(0)
    params = {"W": random.normal(size=(INPUTS, HIDDEN)), "R": random.normal(size=(HIDDEN, HIDDEN))}
    params = {name: array.astype("float32") for name, array in params.items()}
    return stepnet.torch.Scan(sn.RNN(step, params, memory=HIDDEN), batch_first=False)


@dataclass(frozen=True)
class Kind:
    """A kind of module. make: makes one. weight: the part and the name of its recurrent matrix."""

    make: Callable[[], Any]
    weight: Callable[[Any], tuple[Any, str]]


KINDS = {
    "layers": Kind(layer, lambda module: (module, "weight_hh_l0")),
    "Recurrence": Kind(recurrence, lambda module: (module.cell.h, "weight")),
    "Scan": Kind(scan, lambda module: (module.params, "R")),
}


def sequences(steps: int = STEPS, rows: int = ROWS) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).normal(size=(steps, rows, INPUTS)).astype("float32"))


def results(module: Any, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Outputs and last states of a call, and the gradients of inputs and parameters."""
    module.zero_grad()
    x = x.detach().clone().requires_grad_()
    outputs, last = module(x)
    (outputs.square().sum() + last.sum()).backward()
    named = {name: one.grad.clone() for name, one in module.named_parameters()}
    return {"outputs": outputs.detach(), "last": last.detach(), "x": x.grad} | named


def causes(error: Any) -> str:
    """The texts of an error and of those that it was raised for."""
    return f"{error} {causes(error.__cause__)}" if error is not None else ""


# ---- graphs ------------------------------------------------------------------------------------------------


def jit_script(kind: Kind) -> Pairs:
    return [(torch.jit.script(torch.nn.Sequential(kind.make())), None)]


def jit_trace(kind: Kind) -> Pairs:
    module, file = kind.make(), io.BytesIO()
    traced: Any = torch.jit.trace(module, sequences())
    torch.jit.save(traced, file)
    file.seek(0)
    x = sequences(7, 3)
    return [(run(x)[0], module(x)[0]) for run in (traced, torch.jit.load(file))]


class Holder(torch.nn.Module):
    """A model that holds a module."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.before, self.held = torch.nn.Linear(INPUTS, INPUTS), held

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs, last = self.held(torch.relu(self.before(x)))
        return outputs.sum() + last


class Leaves(torch.fx.Tracer):
    """A tracer of one's own, with other leaves."""

    def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
        return isinstance(m, torch.nn.Linear)


def fx_of_a_model(kind: Kind) -> Pairs:
    model = Holder(kind.make())
    calls = list[Any]()
    model.held.register_forward_pre_hook(lambda module, arguments: calls.append(arguments))
    made: Any = torch.fx.symbolic_trace(model)
    assert not calls
    own = torch.fx.GraphModule(model, Leaves().trace(model))
    for each in (made, own):
        assert [node.target for node in each.graph.nodes if node.op == "call_module"] == ["before", "held"]
    made.recompile()
    copied = copy.deepcopy(made)
    copied.load_state_dict(model.state_dict())
    x = sequences()
    return [(run(x), model(x)) for run in (made, own, copied)]


def fx_of_a_module(kind: Kind) -> Pairs:
    return [(torch.fx.symbolic_trace(kind.make()), None)]


def make_fx_graph(kind: Kind) -> Pairs:
    module, x = kind.make(), sequences()
    return [(make_fx(lambda x: module(x)[0])(x)(x + 1), module(x + 1)[0])]


def dims() -> Any:
    return ({0: torch.export.Dim("time"), 1: torch.export.Dim("batch")},)


def exported(kind: Kind) -> tuple[Any, Any]:
    module = kind.make()
    return module, torch.export.export(module, (sequences(),), dynamic_shapes=dims())


def torch_export(kind: Kind) -> Pairs:
    (module, program), file = exported(kind), io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded, x = torch.export.load(file).module(), sequences(7, 3)
    return [(loaded(x)[0], module(x)[0]), (results(loaded, x)["x"], results(module, x)["x"])]


def torch_export_plain(kind: Kind) -> Pairs:
    module, program = exported(kind)
    plain, file, x = program.run_decompositions(stepnet.torch.decompositions()), io.BytesIO(), sequences(7, 3)
    right = results(module, x)
    torch.export.save(plain, file)
    file.seek(0)
    assert "stepnet" not in str(plain.graph)
    del module, program
    gc.collect()
    found = results(torch.export.load(file).module(), x)
    return [(found[name], right[name]) for name in found]


def compiled(kind: Kind) -> Pairs:
    torch.compiler.reset()
    module, x = kind.make(), sequences()
    return [(torch.compile(Holder(module).eval(), backend="aot_eager")(x) * 0 + module(x)[1], module(x)[1])]


def compiled_whole(kind: Kind) -> Pairs:
    torch.compiler.reset()
    module = kind.make()
    with torch._dynamo.config.patch(allow_rnn=True):
        made = torch.compile(module, mode="max-autotune", dynamic=True, fullgraph=True)
        return [(made(x)[0], module(x)[0]) for x in (sequences(), sequences(7, 3))]


def old_onnx(kind: Kind) -> Pairs:
    from onnxruntime import InferenceSession

    model, x = Holder(kind.make()), sequences()
    file: Any = io.BytesIO()
    torch.onnx.export(model, (x,), file, dynamo=False)
    session: Any = InferenceSession(file.getvalue())
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return [(torch.from_numpy(found), model(x))]


# ---- quantization and tensors of other kinds ---------------------------------------------------------------


def quantized_dynamic(kind: Kind) -> Pairs:
    model, x = torch.nn.Sequential(kind.make()), sequences()
    return [(quantize_dynamic(model, {torch.nn.Linear, torch.nn.GRU})(x)[0], model(x)[0])]


def quantized_fx(kind: Kind) -> Pairs:
    mapping = QConfigMapping().set_global(default_dynamic_qconfig)
    return [(quantize_fx.prepare_fx(torch.nn.Sequential(kind.make()).eval(), mapping, (sequences(),)), None)]


def tensors_of_tensors(kind: Kind) -> Pairs:
    module, x = kind.make(), sequences()
    right = results(module, x)
    part, name = kind.weight(module)
    data = getattr(part, name).detach()
    setattr(part, name, torch.nn.Parameter(TwoTensor(data, 2 * data)))
    both: dict[str, Any] = results(module, x)
    with torch.no_grad():
        data.mul_(2)
        setattr(part, name, torch.nn.Parameter(data))
    twice = results(module, x)
    return [pair for key in right for pair in ((both[key].a, right[key]), (both[key].b, twice[key]))]


# ---- counters and records ----------------------------------------------------------------------------------


def counted(kind: Kind) -> Pairs:
    module, x = kind.make(), sequences()
    gates = 3 if kind is KINDS["layers"] else 1
    forward = 2 * STEPS * ROWS * gates * HIDDEN * (INPUTS + HIDDEN)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(x)
    with FlopCounterMode(display=False) as trained:
        results(module, x)
    counts = counter.get_total_flops(), trained.get_total_flops()
    return [(torch.tensor(counts), torch.tensor((forward, 3 * forward)))]


def profiled(kind: Kind) -> Pairs:
    module, x = kind.make(), sequences()
    with torch.profiler.profile() as record:
        module(x)
    name = f"stepnet.torch.{type(module).__name__}"
    return [
        (torch.tensor([one.count for one in record.key_averages() if one.key == name]), torch.tensor([1]))
    ]


# ---- parameters --------------------------------------------------------------------------------------------


def follows(change: Callable[[Any, str], Any], *, trained: bool = True) -> Callable[[Kind], Pairs]:
    """Checks that results follow the parameter that a tool computes from others, also after these change."""

    def check(kind: Kind) -> Pairs:
        module, plain, x = kind.make(), kind.make(), sequences()
        plain.load_state_dict(module.state_dict())
        part, name = kind.weight(module)
        change(part, name)
        module.train(trained)
        pairs: Pairs = []
        for _ in range(2):
            found = results(module, x)
            with torch.no_grad():
                computed = getattr(part, name).detach().clone()
                own, plain_name = kind.weight(plain)
                getattr(own, plain_name).copy_(computed)
                for parameter in module.parameters():
                    parameter.mul_(0.9)
            pairs.append((found["outputs"], results(plain, x)["outputs"]))
            with torch.no_grad():
                for parameter in plain.parameters():
                    parameter.mul_(0.9)
        return pairs

    return check


def moved(kind: Kind) -> Pairs:
    with torch.device("meta"):
        empty = kind.make()
    module, x = kind.make(), sequences()
    empty = empty.to_empty(device="cpu")
    empty.load_state_dict(module.state_dict())
    right = module(x)[0]
    return [(empty(x)[0], right), (module.share_memory()(x)[0], right)]


def copied(kind: Kind) -> Pairs:
    module, x, file = kind.make(), sequences(), io.BytesIO()
    right = results(module, x)["x"]
    others = [copy.deepcopy(module)]
    if kind is not KINDS["Scan"]:  # whose step, a function in a function, pickle does not take
        torch.save(module, file)
        file.seek(0)
        others += [pickle.loads(pickle.dumps(module)), torch.load(file, weights_only=False)]
    return [(results(one, x)["x"], right) for one in others]


def functional(kind: Kind) -> Pairs:
    module, x = kind.make(), sequences()
    doubled = {name: 2 * one.detach() for name, one in module.named_parameters()}
    found = torch.func.functional_call(module, doubled, (x,))[0]
    module.load_state_dict(doubled)
    return [(found, module(x)[0])]


# ---- calls -------------------------------------------------------------------------------------------------


def hooked(kind: Kind) -> Pairs:
    module, x, seen = kind.make(), sequences(), list[str]()
    right = module(2 * x)[0]
    module.register_forward_pre_hook(lambda module, arguments: (2 * arguments[0],))
    module.register_forward_hook(lambda module, arguments, results: (3 * results[0], *results[1:]))
    module.register_full_backward_hook(lambda module, inputs, outputs: seen.append("backward"))
    module.register_state_dict_pre_hook(lambda module, prefix, keep: seen.append("state_dict"))
    found = module(x.requires_grad_())[0]
    found.sum().backward()
    module.state_dict()
    assert seen == ["backward", "state_dict"]
    return [(found, 3 * right)]


def saved(kind: Kind) -> Pairs:
    module, x = kind.make(), sequences()
    right = results(module, x)["x"]
    pairs: Pairs = []
    for hooks in (graph.save_on_cpu(), graph.saved_tensors_hooks(lambda one: one.clone(), lambda one: one)):
        with hooks:
            pairs.append((results(module, x)["x"], right))
    for reentrant in (True, False):
        given = x.clone().requires_grad_()
        outputs, last = checkpoint(module, given, use_reentrant=reentrant)
        (outputs.square().sum() + last.sum()).backward()
        pairs.append((given.grad, right))
    return pairs


def autocast(kind: Kind) -> Pairs:
    module, x = kind.make(), sequences()
    with torch.autocast("cpu", torch.bfloat16):
        found = module(x.bfloat16())[0]
    is_lower = isinstance(module, torch.nn.RNNBase)  # which runs in the dtype of its states then
    own = copy.deepcopy(module).bfloat16() if is_lower else module
    right = own(x.bfloat16() if is_lower else x.bfloat16().float())[0]
    return [(found.float(), right.to(found.dtype).float())]


def inferred(kind: Kind) -> Pairs:
    module, x = kind.make(), sequences()
    right = results(module, x)["x"]
    with torch.inference_mode():
        module(x)
    return [(results(module, x)["x"], right)]


def trained_weights_of_inference(kind: Kind) -> Pairs:
    with torch.inference_mode():
        module = kind.make()
    return [(results(module, sequences()), None)]


def by_parametrization(part: Any, name: str) -> None:
    torch.nn.utils.parametrize.register_parametrization(part, name, torch.nn.Tanh())


def by_old_spectral_norm(part: Any, name: str) -> None:
    torch.nn.utils.spectral_norm(part, name)


def by_old_weight_norm(part: Any, name: str) -> None:
    torch.nn.utils.weight_norm(part, name)


TOOLS: dict[str, Callable[[Kind], Pairs]] = {
    "`torch.jit.script`": jit_script,
    "`torch.jit.trace`, `save`, `load`": jit_trace,
    "`torch.fx.symbolic_trace` of a model that holds it": fx_of_a_model,
    "`torch.fx.symbolic_trace` of it alone": fx_of_a_module,
    "`make_fx`": make_fx_graph,
    "`torch.compile`": compiled,
    '`torch.compile(mode="max-autotune", dynamic=True, fullgraph=True)`': compiled_whole,
    "`torch.export.export`, `save`, `load`": torch_export,
    "the same with `stepnet.torch.decompositions()`": torch_export_plain,
    "`torch.onnx.export(dynamo=False)`": old_onnx,
    "`torch.ao.quantization.quantize_dynamic`": quantized_dynamic,
    "`quantize_fx`, all layers": quantized_fx,
    "parameters that consist of tensors (torchao)": tensors_of_tensors,
    "`FlopCounterMode`": counted,
    "`torch.profiler`": profiled,
    "`parametrize`": follows(by_parametrization),
    "`parametrizations.weight_norm`": follows(parametrizations.weight_norm),
    "`parametrizations.spectral_norm` in evaluation": follows(parametrizations.spectral_norm, trained=False),
    "`torch.nn.utils.weight_norm`": follows(by_old_weight_norm),
    "`torch.nn.utils.spectral_norm` in evaluation": follows(by_old_spectral_norm, trained=False),
    "`prune`": follows(lambda part, name: prune.l1_unstructured(part, name, amount=0.5)),
    'device "meta", `to_empty`, `share_memory`': moved,
    "`copy.deepcopy`, `pickle`, `torch.save(module)`": copied,
    "`torch.func.functional_call`": functional,
    "hooks: forward, backward, state_dict": hooked,
    "`saved_tensors_hooks`, `save_on_cpu`, `checkpoint`": saved,
    '`torch.autocast("cpu")`': autocast,
    "`torch.inference_mode` between training": inferred,
    "training of parameters made in `torch.inference_mode`": trained_weights_of_inference,
}
"""For each row of the table, the function that applies its tool."""

ELSEWHERE = {
    "`except RuntimeError` around a call": "torch/test_wrong_as_in_torch.py",
    "`None` gradients, `allow_unused`, `materialize_grads`": "torch/test_none_gradients.py",
    "tensors with `__torch_function__`, `call_for_per_sample_grads`": "torch/test_layer_modules.py",
    "`load_state_dict(assign=True)`": "torch/test_meta.py",
    "`DistributedDataParallel`": "processes/replicas.py",
    "FSDP: `fully_shard`": "processes/replicas.py",
    "adapters of PEFT: `target_parameters`": "peers/peft_adapters.py",
    "PyTorch's own tests": "torch/pytorchs_own.py",
}
"""The last rows of the table, each with the file in `tests` that has its tests."""
