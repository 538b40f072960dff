"""PyTorch's modules as models: the module's own results, sequence by sequence and in batches."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerance import assert_close
from torch import nn

import stepnet as sn
import stepnet.torch
from stepnet.compiler.values import leaves
from tests.torch import torch_models as models

LENGTHS = [3, 1, 7, 4]
WORDS = ("words",)


def made(kind: Any, dtype: str = "float32") -> Any:
    torch.manual_seed(0)
    return kind().to(getattr(torch, dtype)).eval()


def sequences(what: str, lengths: list[int], dtype: str, seed: int = 0) -> list[Any]:
    random = np.random.default_rng(seed)
    if what == "words":
        return [random.integers(0, models.WORDS, length) for length in lengths]
    return [random.normal(size=(length, 6)).astype(dtype) for length in lengths]


# Each model: what it reads, whether the batch comes first, and where each output has its sequences.
MODELS: dict[str, tuple[str, bool]] = {
    "Sentiment": ("words", True),
    "Directions": ("words", True),
    "Tagger": ("words", False),
    "MaxPooled": ("words", True),
    "Transposed": ("words", True),
    "AttentionPooled": ("words", True),
    "QueryAttention": ("words", True),
    "LuongAttention": ("words", True),
    "LanguageModel": ("words", False),
    "Acoustic": ("frames", True),
    "Convolved": ("frames", True),
    "Speech": ("frames", True),
    "CausalDecoder": ("frames", True),
    "CentredDecoder": ("frames", True),
    "Cut": ("frames", True),
    "Normalised": ("frames", True),
    "Speaker": ("frames", True),
    "Packed": ("words", True),
    "Masked": ("words", True),
    "Ends": ("words", True),
    "Own": ("frames", True),
    "Positions": ("words", True),
    "Heads": ("words", True),
}
EXTRA = ("Packed", "Masked")
"""The models that have an argument `lengths`."""


def graph_of(name: str, module: Any, dtype: str) -> sn.Graph:
    what, first = MODELS[name]
    example = torch.from_numpy(np.stack(sequences(what, [4, 4], dtype)))
    example = example if first else example.transpose(0, 1)
    further = (torch.tensor([4, 4]),) if name in EXTRA else ()
    return stepnet.torch.graph(module, (example, *further))


def compared(name: str, graph: sn.Graph, lengths: list[int], dtype: str, seed: int = 0, **call: Any) -> None:
    """Asserts that a graph gives of sequences what the module gives of each alone."""
    what, first = MODELS[name]
    model: Any = graph.model
    rows, module = sequences(what, lengths, dtype, seed), model.module
    outputs = leaves(graph(sn.Ragged.from_list(rows), **call))
    own = [output.to_list() if isinstance(output, sn.Ragged) else list(output) for output in outputs]
    for place, row in enumerate(rows):
        further = (torch.tensor([len(row)]),) if name in EXTRA else ()
        with torch.no_grad():
            right = leaves(module(torch.from_numpy(row).unsqueeze(0 if first else 1), *further))
        assert len(right) == len(own)
        for output, wanted in zip(own, right, strict=True):
            assert_close(output[place], wanted.squeeze(0 if first else 1).numpy(), len(row), 200, dtype)


@pytest.mark.long(every=5)
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_gives_what_the_module_gives(name: str, dtype: str) -> None:
    graph = graph_of(name, made(getattr(models, name), dtype), dtype)
    engine = "auto" if dtype == "float32" else "interpret"  # to compile takes most of the time
    compared(name, graph, LENGTHS, dtype, engine=engine)


KEPT = dict[str, sn.Graph]()


@pytest.mark.long(examples=10)
@settings(max_examples=40)
@given(
    name=st.sampled_from(list(MODELS)),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    seed=st.integers(0, 99),
)
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_sequences_of_any_lengths(name: str, lengths: list[int], seed: int) -> None:
    if name not in KEPT:
        KEPT[name] = graph_of(name, made(getattr(models, name), "float64"), "float64")
    compared(name, KEPT[name], lengths, "float64", seed, engine="interpret")


@pytest.mark.parametrize(("name", "ready"), [("CausalDecoder", 18), ("CentredDecoder", 0)])
def test_a_decoder_of_audio_takes_chunks(name: str, ready: int) -> None:
    """The results of causal convolutions are ready at once, six for each step."""
    module = made(getattr(models, name))
    layers = [member for member in module.modules() if isinstance(member, nn.Conv1d)]
    weights = [layer.weight.detach().clone() for layer in layers]
    graph, (x,) = graph_of(name, module, "float32"), sequences("frames", [11], "float32")
    assert all(torch.equal(layer.weight, own) for layer, own in zip(layers, weights, strict=True))
    stream = graph.stream_chunks()
    parts = [stream.chunk(x[None, at : at + 3], last=at == 9) for at in range(0, 11, 3)]
    assert parts[0].shape[1] == ready
    with torch.no_grad():
        right = module(torch.from_numpy(x)[None]).numpy()
    assert_close(np.concatenate(parts, axis=1), right, 11, 200)
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), graph(x[None]))


@pytest.mark.parametrize("name", ["CausalDecoder", "CentredDecoder"])
def test_a_decoder_of_audio_has_the_gradients_of_pytorch(name: str) -> None:
    module = made(getattr(models, name))
    graph, rows = graph_of(name, module, "float32"), sequences("frames", [5, 2, 9], "float32")
    outputs, back = sn.vjp(graph)(sn.Ragged.from_list(rows))
    gradients = back(outputs).params
    for row in rows:
        (module(torch.from_numpy(row)[None]).square().sum() / 2).backward()
    for key, parameter in module.named_parameters():
        wanted = parameter.grad.numpy()
        assert_close(gradients[key] / np.abs(wanted).max(), wanted / np.abs(wanted).max(), 16, 200)


# ---- forms of calls ----------------------------------------------------------------------------------------


def test_arrays_lengths_and_time_first() -> None:
    module = made(models.MaxPooled)
    graph = stepnet.torch.graph(module, torch.zeros(2, 3, dtype=torch.int64))
    words = np.random.default_rng(0).integers(0, models.WORDS, (3, 6))
    dense = graph(words)
    with torch.no_grad():
        right = module(torch.from_numpy(words))
    for output, wanted in zip(dense, right, strict=True):
        assert_close(output, wanted.numpy(), 6, 200)
    padded = graph(words, lengths=[6, 2, 4])
    alone = graph(words[1:2, :2])
    first = graph(words.T.copy(), lengths=[6, 2, 4], time_major=True)
    for output, other, single in zip(padded, first, alone, strict=True):
        np.testing.assert_array_equal(output, other)
        np.testing.assert_array_equal(output[1], single[0])


def test_statics_and_states() -> None:
    module = made(models.Started)
    random = np.random.default_rng(0)
    frames = random.normal(size=(3, 5, 6)).astype("float32")
    speaker = random.normal(size=(3, 2)).astype("float32")
    graph = stepnet.torch.graph(
        module, (torch.zeros(2, 4, 6), torch.zeros(2, 2)), axes={"frames": "NT", "speaker": "N"}
    )
    outputs, c = graph(frames, statics=speaker)
    with torch.no_grad():
        right, right_c = module(torch.from_numpy(frames), torch.from_numpy(speaker))
    assert_close(outputs, right.numpy(), 5, 200)
    assert_close(c, right_c.numpy().swapaxes(0, 1), 5, 200)


class Continued(nn.Module):
    """A layer that begins with states of the caller, time first, and gives the last ones."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(6, 4, bidirectional=True)

    def forward(self, frames: Any, states: Any, scale: float = 1.0) -> Any:
        outputs, states = self.rnn(frames * scale, states)
        return {"outputs": outputs, "states": states}


def test_states_of_layers_have_the_sequences_first() -> None:
    module = made(Continued)
    random = np.random.default_rng(0)
    frames, h, c = (
        random.normal(size=shape).astype("float32") for shape in ((5, 3, 6), (2, 3, 4), (2, 3, 4))
    )
    tensors = torch.zeros(3, 2, 6), (torch.zeros(2, 2, 4), torch.zeros(2, 2, 4)), 2.0
    graph = stepnet.torch.graph(module, tensors, axes={"states": "_N"})
    outputs = graph(frames, statics=(h.swapaxes(0, 1), c.swapaxes(0, 1)), time_major=True)
    with torch.no_grad():
        right = module(torch.from_numpy(frames), (torch.from_numpy(h), torch.from_numpy(c)), 2.0)
    assert_close(outputs["outputs"], right["outputs"].numpy(), 5, 200)
    for output, wanted in zip(outputs["states"], right["states"], strict=True):
        assert_close(output, wanted.numpy().swapaxes(0, 1), 5, 200)


class Several(nn.Module):
    """A module that takes any number of arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 4, batch_first=True)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        h, _ = self.rnn(args[0] + args[-1][:, None])
        return h * kwargs.get("scale", 1) + kwargs.get("shift", 0)


class AfterOthers(Several):
    def forward(self, frames: Any, *args: Any) -> Any:
        return super().forward(frames, *args)


@pytest.mark.parametrize(("kind", "last"), [(Several, "args[1]"), (AfterOthers, "args[0]")])
def test_arguments_of_any_number(kind: type[nn.Module], last: str) -> None:
    module, random = made(kind), np.random.default_rng(0)
    frames, still = random.normal(size=(3, 5, 6)), random.normal(size=(3, 6))
    frames, still = frames.astype("float32"), still.astype("float32")
    graph = stepnet.torch.graph(module, (torch.zeros(2, 4, 6), torch.zeros(2, 6)), axes={last: "N"})
    with torch.no_grad():
        right = module(torch.from_numpy(frames), torch.from_numpy(still)).numpy()
    assert_close(graph(frames, statics=still), right, 5, 200)


def test_named_arguments_of_any_number() -> None:
    class Named(Several):
        def forward(self, frames: Any, **kwargs: Any) -> Any:
            return super().forward(frames, frames[:, 0], **kwargs)

    module, random = made(Named), np.random.default_rng(0)
    frames, shift = (random.normal(size=(3, 5, size)).astype("float32") for size in (6, 4))
    example = {"frames": torch.zeros(2, 3, 6), "shift": torch.zeros(2, 3, 4), "scale": 2.0}
    graph = stepnet.torch.graph(module, example)
    with torch.no_grad():
        right = module(torch.from_numpy(frames), shift=torch.from_numpy(shift), scale=2.0).numpy()
    assert_close(graph({"frames": frames, "shift": shift}), right, 5, 200)


def test_two_sequences_side_by_side() -> None:
    module = made(models.Siamese)
    random = np.random.default_rng(0)
    first, second = random.integers(0, models.WORDS, (2, 3, 5))
    empty = torch.zeros(2, 4, dtype=torch.int64)
    graph = stepnet.torch.graph(module, {"second": empty, "first": empty})
    outputs = graph({"first": first, "second": second})
    with torch.no_grad():
        right = module(torch.from_numpy(first), torch.from_numpy(second))
    for output, wanted in zip(outputs, right, strict=True):
        assert_close(output, wanted.numpy(), 5, 200)


@pytest.mark.parametrize("steps", [(4, 4), (4, 7)])
def test_two_sequences_of_different_lengths(steps: tuple[int, int]) -> None:
    module, random = made(models.Translator), np.random.default_rng(0)
    graph = stepnet.torch.graph(module, tuple(torch.zeros(2, count, 6) for count in steps))
    rows = [
        [random.normal(size=(length, 6)).astype("float32") for length in lengths]
        for lengths in ([5, 2, 3], [2, 4, 3])
    ]
    said, mean = graph(dict(zip(("source", "target"), map(sn.Ragged.from_list, rows), strict=True)))
    for place, pair in enumerate(zip(*rows, strict=True)):
        with torch.no_grad():
            right = module(*(torch.from_numpy(row[None]) for row in pair))
        assert_close(said.to_list()[place], right[0][0].numpy(), 5, 200)
        assert_close(mean[place], right[1][0].numpy(), 5, 200)


def test_arrays_of_different_numbers_of_steps() -> None:
    module = made(models.Siamese)
    first, second = (np.random.default_rng(count).integers(0, models.WORDS, (2, count)) for count in (5, 3))
    graph = stepnet.torch.graph(module, (torch.from_numpy(first), torch.from_numpy(second)))
    with torch.no_grad():
        right = module(torch.from_numpy(first), torch.from_numpy(second))
    for output, wanted in zip(graph({"first": first, "second": second}), right, strict=True):
        assert_close(output, wanted.numpy(), 5, 200)


class Sorted(nn.Module):
    """A layer over sequences that the module sorts, and takes back into their order, itself."""

    def __init__(self, undone: bool = True) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 4, batch_first=True, bidirectional=True)
        self.undone = undone

    def forward(self, frames: Any, size: Any) -> Any:
        size, order = size.sort(descending=True)
        packed = nn.utils.rnn.pack_padded_sequence(frames[order], size, batch_first=True)
        outputs, h = self.rnn(packed)
        back = order.argsort()
        padded, sizes = nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True)
        if not self.undone:
            return padded
        return padded[back], h.index_select(1, back), sizes[back], outputs


def test_sequences_that_a_module_sorts() -> None:
    module = made(Sorted)
    example = torch.zeros(2, 4, 6), torch.tensor([4, 4])
    graph = stepnet.torch.graph(module, example, lengths="size")
    rows = sequences("frames", LENGTHS, "float32")
    outputs, h, sizes, packed = graph(sn.Ragged.from_list(rows))
    assert sizes.tolist() == LENGTHS
    np.testing.assert_array_equal(packed.values, outputs.values)
    for place, row in enumerate(rows):
        with torch.no_grad():
            right, right_h = module.rnn(torch.from_numpy(row)[None])
        assert_close(outputs.to_list()[place], right[0].numpy(), len(row), 200)
        assert_close(h[place], right_h[:, 0].numpy(), len(row), 200)


def test_parameters_are_the_state_dict() -> None:
    module = made(models.LanguageModel)
    graph = stepnet.torch.graph(module, torch.zeros(4, 2, dtype=torch.int64))
    assert list(graph.params) == list(module.state_dict())
    other = models.LanguageModel().eval()
    changed = graph.with_params({name: tensor.numpy() for name, tensor in other.state_dict().items()})
    words = np.arange(6).reshape(3, 2)
    with torch.no_grad():
        right = other(torch.from_numpy(words)), module(torch.from_numpy(words))
    assert_close(changed(words, time_major=True), right[0].numpy(), 3, 200)
    assert_close(graph(words, time_major=True), right[1].numpy(), 3, 200)


class Buffered(nn.Module):
    """Buffers of which one is in no state_dict, and weights that are computed of others."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.arange(6.0), persistent=False)
        self.register_buffer("shift", torch.arange(6.0))
        self.linear = nn.utils.parametrizations.weight_norm(nn.Linear(6, 3))

    def forward(self, frames: Any) -> Any:
        return self.linear(frames * self.scale + self.shift)


def test_buffers_and_computed_weights() -> None:
    module = made(Buffered)
    graph = stepnet.torch.graph(module, torch.zeros(2, 4, 6))
    assert set(graph.params) == {
        "shift",
        "linear.bias",
        "linear.parametrizations.weight.original0",
        "linear.parametrizations.weight.original1",
    }
    frames = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")
    with torch.no_grad():
        assert_close(graph(frames), module(torch.from_numpy(frames)).numpy(), 1, 200)


def test_copies_of_graphs_run() -> None:
    graph = stepnet.torch.graph(made(models.Tagger), torch.zeros(3, 2, dtype=torch.int64))
    words = np.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(graph))(words), graph(words))


def test_nothing_is_computed_that_nobody_needs() -> None:
    graph = stepnet.torch.graph(made(models.Directions), torch.zeros(2, 3, dtype=torch.int64))
    kinds = [part.kind for part in graph.schedule.parts]
    assert kinds == ["recurrence", "recurrence", "plain", "recurrence", "recurrence", "plain"]


def test_a_module_is_left_as_it_was() -> None:
    module = made(models.Sentiment)
    before = {name: {*member.__dict__} for name, member in module.named_modules()}
    hooks = [len(member._forward_hooks) + len(member._forward_pre_hooks) for member in module.modules()]
    stepnet.torch.graph(module, torch.zeros(2, 3, dtype=torch.int64))
    assert {name: {*member.__dict__} for name, member in module.named_modules()} == before
    assert hooks == [0] * len(hooks)
    words = torch.zeros(2, 3, dtype=torch.int64)
    assert module(words).grad_fn is not None
    assert [
        len(member._forward_hooks) + len(member._forward_pre_hooks) for member in module.modules()
    ] == hooks


@pytest.mark.parametrize("exported", [False, True])
def test_a_graph_within_a_graph(exported: bool, tmp_path: Any) -> None:
    tagger, example = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)), torch.zeros(3, 5, 6)
    if exported:
        shapes = ({0: torch.export.Dim("batch"), 1: torch.export.Dim("time")},)
        torch.export.save(
            torch.export.export(tagger, (example,), dynamic_shapes=shapes), tmp_path / "made.pt2"
        )
    graph = sn.load(tmp_path / "made.pt2") if exported else stepnet.torch.graph(tagger, example)
    x = np.random.default_rng(0).normal(size=(2, 4, 6)).astype("float32")
    outer = sn.Graph(lambda x, params: graph(x) * params, np.float32(2), inputs=6)
    np.testing.assert_array_equal(outer(x), 2 * graph(x))


@pytest.mark.parametrize("name", ["fmod", "prod"])
def test_operations_of_a_program_of_a_file(name: str, tmp_path: Any) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fmod(x, 0.5) if name == "fmod" else x.prod(-1, keepdim=True)

    shapes = ({0: torch.export.Dim("batch"), 1: torch.export.Dim("time")},)
    program = torch.export.export(Model(), (torch.zeros(3, 5, 6),), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "made.pt2")
    x = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(0))
    assert_close(sn.load(tmp_path / "made.pt2")(x.numpy()), Model()(x.double()).numpy(), 4, 6)
