"""ONNX models of the corpus, as PyTorch and other tools write them, with what ONNX Runtime gives.

    python tests/conformance/whole/make_onnx.py [NAME ...]

Without names it writes the archive saved/onnx.tar.xz and its list; with names it only tries these models.
"""

# pyright: basic, reportPrivateImportUsage=false

import io
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
import torch_modules as modules
from drawn_inputs import LENGTHS, MASK, ONES, STEPS, Arrays, Input, batch, real, record, tokens
from onnx_by_hand import BY_HAND
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static
from recording import Recorder, Run
from torch import nn
from torch.export import Dim


@dataclass(frozen=True)
class Export:
    """A module to export.

    Attributes:
        module: Makes the module.
        inputs: Its inputs by name; axes of batch, steps and a second sequence are dynamic.
        outputs: The names of its outputs.
        opset: The version of ONNX's operators.
        dynamo: Whether torch.export traces the module, and not TorchScript.
        script: Whether the module is scripted, for control flow.
        steps: The steps of the three calls.
    """

    module: Callable[[], nn.Module]
    inputs: Mapping[str, Input]
    outputs: tuple[str, ...]
    opset: int
    dynamo: bool = False
    script: bool = False
    steps: tuple[int, int, int] = STEPS


EXPORTS = {
    "tagger_lstm": Export(modules.Tagger, {"tokens": tokens("N T", 30)}, ("tags",), 11),
    "tagger_packed": Export(
        lambda: modules.PackedTagger(nn.GRU, layers=1),
        {"tokens": tokens("N T", 30), "lengths": LENGTHS},
        ("tags",),
        13,
    ),
    "words_and_casing": Export(
        modules.WordsAndCasing,
        {"words": tokens("N T", 30), "casing": tokens("N T", 4), "features": real("N T 2")},
        ("tags", "chunks"),
        12,
    ),
    "last_state": Export(modules.LastState, {"x": real("N T 6")}, ("classes",), 9),
    "attention_pooling": Export(
        modules.AttentionPooling, {"tokens": tokens("N T", 30), "mask": ONES}, ("classes", "weights"), 14
    ),
    "crnn": Export(modules.CRNN, {"image": real("N 1 8 T")}, ("characters",), 11, steps=(12, 8, 16)),
    "voice": Export(
        modules.VoiceOfRate,
        {"input": real("N 64", 0.3), "state": real("2 N 8", 0.3), "sr": Input("", "same", 16000, "i8")},
        ("output", "stateN"),
        16,
        script=True,
    ),
    "stream": Export(
        modules.Stream, {"x": real("N T 5"), "h0": real("2 N 8"), "c0": real("2 N 8")}, ("y", "hn", "cn"), 15
    ),
    "deep_speech": Export(
        modules.DeepSpeech, {"spectrogram": real("N 8 T")}, ("log_probs",), 11, steps=(12, 8, 15)
    ),
    "speech_decoder": Export(
        modules.SpeechDecoder, {"memory": real("N U 8"), "frames": real("T N 4")}, ("mel",), 14, script=True
    ),
    "spotter": Export(modules.Spotter, {"mfcc": real("N 8 T")}, ("scores",), 13, steps=(12, 9, 16)),
    "forecaster": Export(modules.LastStep, {"window": real("N T24 3")}, ("forecast",), 17),
    "autoregressive": Export(
        modules.Autoregressive,
        {"target": real("N T7", 5), "covariates": real("N T7 3")},
        ("loc", "scale"),
        18,
        dynamo=True,
    ),
    "encoder": Export(
        modules.Encoder, {"source": tokens("T N", 30), "lengths": LENGTHS}, ("outputs", "hidden"), 12
    ),
    "attending": Export(modules.Attending, {"x": real("N T7 5")}, ("scores",), 20, dynamo=True),
    "masked_attention": Export(
        modules.MaskedAttention, {"tokens": tokens("N T", 30), "mask": MASK}, ("scores",), 17
    ),
    "gated_convolutions": Export(modules.GatedConvolutions, {"x": real("N 3 T")}, ("logits",), 16),
    "temporal_network": Export(modules.TemporalNetwork, {"x": real("N T 4")}, ("scores",), 18, dynamo=True),
    "upsampler": Export(modules.Upsampler, {"mel": real("N 6 T")}, ("audio",), 13),
    "residual_lstm": Export(modules.Residual, {"x": real("N T 5")}, ("y",), 17),
    "residual_gru": Export(lambda: modules.Residual(nn.GRU), {"x": real("N T 5")}, ("y",), 12),
    "rectified": Export(modules.Rectified, {"x": real("T N 4")}, ("y", "last"), 9),
    "gated_linear": Export(modules.GatedLinear, {"tokens": tokens("N T", 25)}, ("logits",), 10),
    "cached_convolution": Export(
        modules.CachedConvolution,
        {"frames": real("B 5 T"), "cache": real("B 5 2"), "state": real("1 B 8")},
        ("speech", "cache_out", "state_out"),
        16,
    ),
    "sentence_pair": Export(
        modules.SentencePair,
        {"premise": tokens("N T7", 30), "hypothesis": tokens("N T9", 30)},
        ("relation",),
        18,
        dynamo=True,
    ),
    "tagger_gru": Export(
        lambda: modules.Tagger(nn.GRU, layers=1), {"tokens": tokens("N T7", 30)}, ("tags",), 21, dynamo=True
    ),
    "denoiser": Export(modules.Denoiser, {"features": real("N T7 10")}, ("gains", "voice"), 22, dynamo=True),
    "predictor": Export(
        modules.Predictor,
        {"targets": tokens("N T", 20), "h": real("2 N 8"), "c": real("2 N 8")},
        ("log_probs", "h_out", "c_out"),
        15,
    ),
    "unrolled": Export(modules.Unrolled, {"x": real("N T5 4")}, ("y",), 19, dynamo=True),
    "conformer": Export(modules.ConformerConvolution, {"x": real("N T 8")}, ("y",), 22, dynamo=True),
}


def exported(export: Export) -> bytes:
    """Exports a module; returns the bytes of the ONNX model."""
    torch.manual_seed(0)
    module = modules.with_statistics(export.module())
    example = batch(export.inputs, export.steps[0])
    arguments = tuple(torch.from_numpy(np.asarray(array)) for array in example.values())
    names: dict[str, object] = {"input_names": list(export.inputs), "output_names": list(export.outputs)}
    axes = {name: each.open for name, each in export.inputs.items()}
    if export.dynamo:
        sizes = {axis: Dim(f"size_{axis}", min=1, max=1000) for axis in "NTU"}
        shapes = tuple({number: sizes[axis] for number, axis in each.items()} for each in axes.values())
        program = torch.onnx.export(
            module, arguments, **names, opset_version=export.opset, dynamo=True, dynamic_shapes=shapes
        )
        return program.model_proto.SerializeToString()
    stream = io.BytesIO()
    torch.onnx.export(
        torch.jit.script(module) if export.script else module,
        arguments,
        stream,
        **names,
        opset_version=export.opset,
        dynamo=False,
        dynamic_axes={name: each for name, each in axes.items() if each},
    )
    return stream.getvalue()


def runtime(data: bytes) -> Run:
    """A function that runs a model with ONNX Runtime."""
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return lambda arrays: dict(zip(names, session.run(None, arrays), strict=True))


# ---- smaller numbers ---------------------------------------------------------------------------------------


def half_weights(name: str) -> bytes:
    """A model whose weights are float16, each cast before it is used."""
    model = onnx.load_from_string(exported(EXPORTS[name]))
    casts = []
    for weights in model.graph.initializer:
        array = onnx.numpy_helper.to_array(weights)
        if array.dtype == np.float32 and array.size > 1:
            full = weights.name
            weights.CopyFrom(onnx.numpy_helper.from_array(array.astype("f2"), f"{full}_half"))
            casts.append(onnx.helper.make_node("Cast", [weights.name], [full], to=onnx.TensorProto.FLOAT))
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(casts + nodes)
    return model.SerializeToString()


def quantized(name: str, operators: list[str]) -> bytes:
    """A model with weights in eight bits, its inputs quantised as it runs."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "before.onnx"), Path(folder, "after.onnx")
        before.write_bytes(exported(EXPORTS[name]))
        quantize_dynamic(before, after, op_types_to_quantize=operators)
        return after.read_bytes()


class Readings(CalibrationDataReader):
    """Draws inputs by which the ranges of values are found."""

    def __init__(self, export: Export):
        self.drawn = iter([batch(export.inputs, steps) for steps in (12, 10)])

    def get_next(self) -> Arrays | None:
        return next(self.drawn, None)


def calibrated(name: str) -> bytes:
    """A model whose values are quantised with fixed ranges, as QuantizeLinear and DequantizeLinear."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "before.onnx"), Path(folder, "after.onnx")
        before.write_bytes(exported(EXPORTS[name]))
        quantize_static(before, after, Readings(EXPORTS[name]), quant_format=QuantFormat.QDQ)
        return after.read_bytes()


@dataclass(frozen=True)
class Smaller:
    """A function that makes a model smaller, the name of the model, and what is made.

    alone: whether it is run on one sequence at a time, as its results depend on what else is in a batch.
    """

    make: Callable[[str], bytes]
    source: str
    about: str
    alone: bool = False

    def inputs(self) -> dict[str, Input]:
        """The inputs of the model by name."""
        given = EXPORTS[self.source].inputs
        return {
            name: replace(each, axes=each.axes.replace("N", "B")) if self.alone else each
            for name, each in given.items()
        }


SMALLER = {
    "half_weights": Smaller(half_weights, "tagger_lstm", "A tagger with weights in float16, cast before use"),
    "quantized_tagger": Smaller(
        lambda source: quantized(source, ["LSTM", "MatMul", "Gather"]),
        "tagger_lstm",
        "A tagger in eight bits",
        alone=True,
    ),
    "quantized_attention": Smaller(
        lambda source: quantized(source, ["MatMul"]),
        "attention_pooling",
        "A classifier with products in eight bits",
        alone=True,
    ),
    "calibrated_spotter": Smaller(calibrated, "spotter", "Convolutions with values in eight bits"),
}


def made(name: str) -> tuple[bytes, Mapping[str, Input], tuple[int, int, int], str]:
    """Makes a model; returns its bytes, its inputs, the steps of the calls, and what it is."""
    if name in BY_HAND:
        data, inputs = BY_HAND[name]()
        return data, inputs, STEPS, first_line(BY_HAND[name])
    if name in SMALLER:
        smaller = SMALLER[name]
        steps = EXPORTS[smaller.source].steps
        return smaller.make(smaller.source), smaller.inputs(), steps, smaller.about
    export = EXPORTS[name]
    how = "scripted" if export.script else "torch.export" if export.dynamo else "traced"
    about = f"{first_line(export.module)}; opset {export.opset}, {how}"
    return exported(export), export.inputs, export.steps, about


def first_line(documented: Callable[..., object]) -> str:
    """The first sentence of a docstring."""
    return (documented.__doc__ or documented().__doc__ or "").partition("\n")[0].removesuffix(".")


if __name__ == "__main__":
    recorder = Recorder("onnx", f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}")
    for name in sys.argv[1:] or (*EXPORTS, *BY_HAND, *SMALLER):
        data, inputs, steps, about = made(name)
        onnx.checker.check_model(data)
        (recorder.folder / f"{name}.onnx").write_bytes(data)
        record(recorder, name, f"{name}.onnx", about, inputs, runtime(data), steps)
    if len(sys.argv) == 1:
        recorder.pack()
