"""Padding by reflection and replication in modules, and the layers of EnCodec as transformers has them."""

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from tolerance import assert_close
from torch import nn

import stepnet as sn
import stepnet.torch
from stepnet.errors import InputError, StepnetError
from tests.build.libraries import assert_as_in_python, library_of

FRAMES = 6


class Padded(nn.Module):
    """Convolutions with padding modes, and the function."""

    def __init__(self) -> None:
        super().__init__()
        self.reflected = nn.Conv1d(FRAMES, 4, 5, padding=2, padding_mode="reflect")
        self.replicated = nn.Conv1d(4, 4, 3, stride=2, padding=1, padding_mode="replicate")

    def forward(self, frames: Any) -> Any:
        x = functional.relu(self.reflected(frames.transpose(1, 2)))
        x = functional.pad(self.replicated(x), (1, 0), mode="reflect")
        return functional.pad(x, (0, 0), mode="reflect").transpose(1, 2)


class Turned(nn.Module):
    """A layer over channels ahead of steps, with steps ahead of channels around it."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, frames: Any) -> Any:
        return self.layer(frames.transpose(1, 2)).transpose(1, 2)


def frames(*lengths: int, features: int = FRAMES) -> list[Any]:
    random = np.random.default_rng(0)
    return [random.normal(size=(length, features)).astype("float32") for length in lengths]


def assert_as_torch(module: Any, rows: list[Any]) -> sn.Graph:
    """Compares a graph of the module with the module, sequence by sequence; returns the graph."""
    features = rows[0].shape[1]
    graph = stepnet.torch.graph(module, torch.zeros(2, 9, features), axes="NT")
    for made, one in zip(graph(sn.Ragged.from_list(rows)).to_list(), rows, strict=True):
        with torch.no_grad():
            right = module(torch.from_numpy(one)[None])[0].numpy()
        assert_close(made, right, len(one), 200)
    return graph


def test_padding_modes_are_those_of_pytorch():
    torch.manual_seed(0)
    module, rows = Padded().eval(), frames(9, 4, 17)
    graph = assert_as_torch(module, rows)
    stream = graph.stream_chunks()
    parts = [stream.chunk(rows[2][None, :5]), stream.chunk(rows[2][None, 5:], last=True)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), graph(rows[2][None]))


def test_padding_modes_in_libraries_for_c(tmp_path: Path):
    torch.manual_seed(0)
    graph = stepnet.torch.graph(Padded().eval(), torch.zeros(2, 9, FRAMES), axes="NT")
    library = library_of(graph, tmp_path, inputs=FRAMES)
    x = sn.Ragged.from_list(frames(9, 3, 0, 17))
    assert_as_in_python(library, graph(x), x)
    with pytest.raises(InputError, match="has fewer steps than the model's padding by reflection reads"):
        library({"x": sn.Ragged.from_list(frames(9, 2))})


def test_padding_modes_in_programs(tmp_path: Path):
    torch.manual_seed(0)
    module, (x,) = Padded().eval(), frames(11)
    time = torch.export.Dim("time", min=5, max=500)
    batch = torch.export.Dim("batch", min=2, max=500)
    program = torch.export.export(module, (torch.zeros(2, 9, FRAMES),), dynamic_shapes=({0: batch, 1: time},))
    torch.export.save(program, tmp_path / "padded.pt2")
    with torch.no_grad():
        right = module(torch.from_numpy(x)[None]).numpy()
    assert_close(sn.load(tmp_path / "padded.pt2")(x[None]), right, 11, 200)


def test_other_modes_and_axes_are_refused():
    for pads, mode, message in (
        ((1, 1), "circular", "by reflect or replicate, not by 'circular'"),
        ((-1, 1), "reflect", "steps are put at each end, not -1 and 1"),
        ((1, 1, 1, 1), "replicate", "a padding of 'replicate' has two numbers"),
    ):
        module = Turned(lambda x, pads=pads, mode=mode: functional.pad(x, pads, mode=mode))
        with pytest.raises(StepnetError, match=message):
            stepnet.torch.graph(module, torch.zeros(2, 9, FRAMES))


# ---- EnCodec -----------------------------------------------------------------------------------------------

encodec: Any = pytest.importorskip("transformers.models.encodec.modeling_encodec")
CONFIG: dict[str, Any] = {
    "num_filters": 2,
    "hidden_size": FRAMES,
    "codebook_dim": FRAMES,
    "upsampling_ratios": [4, 2],
    "num_lstm_layers": 1,
    "num_residual_layers": 1,
}
CONFIGS = {
    "24 kHz": {},
    "48 kHz": {"use_causal_conv": False, "norm_type": "time_group_norm"},
    "zeros": {"pad_mode": "constant"},
}

KERNELS = [(7, 1, 1), (4, 2, 1), (3, 1, 4), (8, 4, 1), (3, 3, 1)]


def of_encodec(kind: str, **settings: Any) -> Any:
    """A module of EnCodec with random weights."""
    torch.manual_seed(0)
    config = encodec.EncodecConfig(**CONFIG, **settings)
    return Turned(getattr(encodec, kind)(config)).eval()


@pytest.mark.long(each=True)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"), [(7, 1, 1), (4, 2, 1), (3, 1, 4), (8, 4, 1), (3, 3, 1)]
)
def test_a_convolution_of_encodec(name: str, kernel: int, stride: int, dilation: int):
    torch.manual_seed(0)
    config = encodec.EncodecConfig(**CONFIG, **CONFIGS[name])
    layer = encodec.EncodecConv1d(config, FRAMES, 3, kernel, stride, dilation)
    assert_as_torch(Turned(layer).eval(), frames(9, 10, 11, 12, 30))
    assert "forward" not in layer.__dict__


def test_the_codec_of_encodec_takes_chunks():
    for kind, steps, features in (("EncodecEncoder", 83, 1), ("EncodecDecoder", 12, FRAMES)):
        module, (x,) = of_encodec(kind), frames(steps, features=features)
        graph = assert_as_torch(module, [x])
        stream, cuts = graph.stream_chunks(), [0, 1, 5, 9, 10, steps]
        parts = [stream.chunk(x[None, at:to], last=to == steps) for at, to in pairwise(cuts)]
        np.testing.assert_array_equal(np.concatenate(parts, axis=1), graph(x[None]))
        if kind == "EncodecDecoder":  # after the first steps, eight results for each step
            assert [part.shape[1] for part in parts] == [0, 0, 72, 8, 16]
    with pytest.raises(InputError, match="so a sequence has at least 7 steps, and sequence 0 has 6"):
        graph(x[None, :6])


class Quantized(nn.Module):
    """The quantizer of EnCodec: codes of frames, or frames of codes."""

    def __init__(self, quantizer: Any, method: str) -> None:
        super().__init__()
        self.quantizer, self.method = quantizer, method

    def forward(self, values: Any) -> Any:
        bandwidth = [3.0] if self.method == "encode" else []
        return getattr(self.quantizer, self.method)(values, *bandwidth)


def test_the_quantizer_of_encodec():
    torch.manual_seed(0)
    settings = encodec.EncodecConfig(hidden_size=8, codebook_dim=8, codebook_size=64)
    quantizer = encodec.EncodecResidualVectorQuantizer(settings).eval()
    for layer in quantizer.layers:
        layer.codebook.embed.normal_()
    encode, decode = (Quantized(quantizer, method) for method in ("encode", "decode"))
    frames = torch.randn(2, 8, 23)
    codes = encode(frames)
    assert len(codes) > 1
    found = stepnet.torch.graph(encode, torch.zeros(2, 8, 20), axes="N_T")(frames.mT.contiguous().numpy())
    np.testing.assert_array_equal(found, codes.permute(1, 2, 0))
    example = torch.zeros(len(codes), 2, 20, dtype=torch.long)
    back = stepnet.torch.graph(decode, example, axes="_NT")(codes.permute(1, 2, 0).contiguous().numpy())
    assert_close(back, decode(codes).mT.detach().numpy(), width=len(codes))


@pytest.mark.long(every=2)
@pytest.mark.parametrize(
    ("kind", "steps", "features"), [("EncodecEncoder", 83, 1), ("EncodecDecoder", 12, FRAMES)]
)
def test_the_codec_of_encodec_in_a_library_for_c(kind: str, steps: int, features: int, tmp_path: Path):
    graph = stepnet.torch.graph(of_encodec(kind), torch.zeros(2, 9, features), axes="NT")
    library = library_of(graph, tmp_path, inputs=features)
    x = sn.Ragged.from_list(frames(steps, 0, steps - 5, features=features))
    assert_as_in_python(library, graph(x), x)


# ---- Mimi and DAC ------------------------------------------------------------------------------------------

mimi: Any = pytest.importorskip("transformers.models.mimi.modeling_mimi")
dac: Any = pytest.importorskip("transformers.models.dac.modeling_dac")
MIMI: dict[str, Any] = {
    "num_filters": 2,
    "hidden_size": FRAMES,
    "upsampling_ratios": [4],
    "num_residual_layers": 1,
    "num_hidden_layers": 1,
    "intermediate_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "layer_scale_initial_scale": 1.0,
    "codebook_size": 8,
    "codebook_dim": FRAMES,
    "vector_quantization_hidden_dimension": FRAMES,
    "num_quantizers": 2,
    "upsample_groups": FRAMES,
    "frame_rate": 3000.0,
    "sliding_window": 5,
}
PARTS = {"encoder_seanet": (1, (40, 43, 0, 51)), "decoder_seanet": (FRAMES, (12, 0, 9))}
OUTPUTS = {"encoder": ("latents", 1, (40, 0, 101)), "decoder": ("audio_values", FRAMES, (3, 0, 12))}


class Named(nn.Module):
    """A model over channels ahead of steps, with one of its outputs as steps ahead of channels."""

    def __init__(self, model: Any, output: str, settings: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.output, self.settings = model, output, settings

    def forward(self, frames: Any) -> Any:
        return self.model(frames.transpose(1, 2), **self.settings)[self.output].transpose(1, 2)


def of_mimi(**settings: Any) -> Any:
    """A model of Mimi with random weights."""
    torch.manual_seed(0)
    return mimi.MimiModel(mimi.MimiConfig(**MIMI | settings)).eval()


def assert_as_doubles(module: Any, features: int, lengths: tuple[int, ...], example: int) -> sn.Graph:
    """Compares a graph of a module with the module in float64, sequence by sequence; returns the graph."""
    rows = frames(*lengths, features=features)
    graph = stepnet.torch.graph(module, torch.zeros(2, example, features), axes="NT")
    found, doubles = graph(sn.Ragged.from_list(rows)).to_list(), copy.deepcopy(module).double()
    for made, one in zip(found, rows, strict=True):
        if not len(one):
            assert not len(made)
            continue
        with torch.no_grad():
            right = doubles(torch.from_numpy(one).double()[None])[0].numpy()
        assert_close(made, right, len(one), 400)
    return graph


def assert_chunks(graph: sn.Graph, features: int, steps: int) -> None:
    """Asserts that chunks of a sequence have the bits of a call."""
    (x,), stream, cuts = frames(steps, features=features), graph.stream_chunks(), [0, 1, 7, 8, steps]
    parts = [stream.chunk(x[None, at:to], last=to == steps) for at, to in pairwise(cuts)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), graph(x[None]))


@pytest.mark.long(every=4)
@pytest.mark.parametrize(
    "settings",
    [{}, {"pad_mode": "replicate"}, {"use_causal_conv": False, "pad_mode": "reflect"}],
    ids=["zeros", "copies", "not causal"],
)
@pytest.mark.parametrize("part", PARTS)
def test_the_convolutions_of_mimi(part: str, settings: dict[str, Any]):
    model, (features, lengths) = of_mimi(**settings), PARTS[part]
    layers = getattr(getattr(model, part.partition("_")[0]), part)
    graph = assert_as_doubles(Turned(layers), features, lengths, 40)
    assert_chunks(graph, features, max(lengths))


@pytest.mark.long(every=2)
@pytest.mark.parametrize("half", OUTPUTS)
def test_each_half_of_mimi(half: str):
    """Behind a stride each step attends to the last ones, by the window of the configuration."""
    model, (output, features, lengths) = of_mimi(), OUTPUTS[half]
    graph = assert_as_doubles(Named(getattr(model, half), output, {}), features, lengths, 40)
    with pytest.raises(InputError, match="this model has no stream of chunks: its attention reads all steps"):
        graph.stream_chunks().chunk(np.zeros((1, 40, features), "float32"))


def test_what_graphs_of_mimi_have_not_is_named():
    model, x = of_mimi(), torch.zeros(2, 40, 1)
    cases: dict[str, Any] = {
        "a graph has streams in place of a padding_cache: leave it out, and use_streaming": Named(
            model.encoder, "latents", {"use_streaming": True}
        ),
        "a graph runs whole sequences, each alone: leave out past_key_values": Named(
            model.encoder, "latents", {"past_key_values": object()}
        ),
    }
    for message, module in cases.items():
        with pytest.raises(StepnetError, match=message):
            stepnet.torch.graph(module.eval(), x, axes="NT")
    model.encoder.encoder_transformer.rotary_emb.rope_type = "dynamic"
    with pytest.raises(StepnetError, match="the frequencies of rope_type='dynamic' follow from the number"):
        stepnet.torch.graph(Named(model.encoder, "latents", {}).eval(), x, axes="NT")


@pytest.mark.long(every=2)
@pytest.mark.parametrize(("half", "features", "lengths"), [("encoder", 1, (40, 51)), ("decoder", 8, (12, 7))])
def test_each_half_of_dac(half: str, features: int, lengths: tuple[int, ...]):
    torch.manual_seed(0)
    config = dac.DacConfig(
        encoder_hidden_size=2,
        decoder_hidden_size=8,
        hidden_size=8,
        downsampling_ratios=[4],
        upsampling_ratios=[4],
        n_codebooks=2,
        codebook_size=8,
        codebook_dim=4,
    )
    graph = assert_as_doubles(Turned(getattr(dac.DacModel(config), half)).eval(), features, lengths, 40)
    assert_chunks(graph, features, max(lengths))
