"""Models of Paddle in the corpus, saved by both of its ways, with what Paddle gives.

    .peers/paddle/bin/python tests/conformance/whole/make_paddle.py [NAME ...]

Without names it writes the archive saved/paddle.tar.xz and its list; with names it only tries these models.
A model is a program NAME.json (of `paddle.jit.save`) or NAME.pdmodel (of `paddle.static.save_inference_model`
without the new representation), and its parameters NAME.pdiparams.
"""

# pyright: basic

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

OLDER = "--older" in sys.argv
os.environ["FLAGS_enable_pir_api"] = str(int(not OLDER))  # noqa: SIM112 - this is its name
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np  # noqa: E402
import paddle  # noqa: E402
import paddle_modules as modules  # noqa: E402
from drawn_inputs import LENGTHS, ONES, OPEN, STEPS, Input, real, record, tokens  # noqa: E402
from paddle import nn  # noqa: E402
from paddle.static import InputSpec  # noqa: E402
from recording import Recorder, Run  # noqa: E402


@dataclass(frozen=True)
class Program:
    """A layer to save: what makes it, its inputs, the steps of calls, and whether in the older format."""

    layer: Callable[[], nn.Layer]
    inputs: Mapping[str, Input]
    steps: tuple[int, int, int] = STEPS
    older: bool = False


PROGRAMS = {
    "tagger": Program(modules.Tagger, {"tokens": tokens("N T", 30)}, older=True),
    "lengths": Program(modules.Lengths, {"tokens": tokens("N T", 30), "lengths": LENGTHS}),
    "crnn": Program(modules.CRNN, {"image": real("N 1 8 T")}, (12, 8, 16)),
    "spotter": Program(modules.Spotter, {"mfcc": real("N 8 T")}, (12, 9, 16), older=True),
    "text_cnn": Program(modules.TextCNN, {"tokens": tokens("N T", 40)}),
    "attention_pooling": Program(modules.AttentionPooling, {"x": real("N T 5"), "mask": ONES}),
    "attending": Program(modules.Attending, {"x": real("N T 5")}),
    "deep_speech": Program(modules.DeepSpeech, {"frames": real("N 8 T")}, (12, 8, 15)),
    "stream": Program(modules.Stream, {"x": real("N T 5"), "h": real("2 N 8"), "c": real("2 N 8")}),
    "gated_convolutions": Program(modules.GatedConvolutions, {"x": real("N 3 T")}),
    "separator": Program(modules.Separator, {"mixture": real("N 6 T")}),
    "forecaster": Program(modules.Forecaster, {"window": real("N T 3", 2.0)}),
    "encoder": Program(modules.Encoder, {"source": tokens("N T", 30)}),
    "upsampler": Program(modules.Upsampler, {"mel": real("N 6 T")}),
    "time_major": Program(modules.TimeMajor, {"x": real("T N 4")}, older=True),
}


def statistics(layer: nn.Layer) -> dict[str, np.ndarray]:
    """Draws statistics for batch normalisations, as training would leave them, by the names of buffers."""
    random = np.random.default_rng(0)
    drawn = dict[str, np.ndarray]()
    for name, buffer in layer.named_buffers():
        if name.endswith("._variance"):
            drawn[name] = random.uniform(0.5, 2, buffer.shape).astype("float32")
        elif name.endswith("._mean"):
            drawn[name] = random.normal(0, 0.3, buffer.shape).astype("float32")
    return drawn


def sizes(given: Input) -> list[int]:
    """The sizes of an input, -1 for those that are free."""
    return [-1 if axis in OPEN else int(axis) for axis in given.letters]


def listed(outputs):
    """The outputs of a layer, one or several, as a list."""
    return list(outputs) if isinstance(outputs, tuple | list) else [outputs]


def saved(name: str, folder: Path) -> Run:
    """Saves a layer in a folder as PIR; returns a function that runs it."""
    program = PROGRAMS[name]
    layer = program.layer()
    for key, array in statistics(layer).items():
        dict(layer.named_buffers())[key].set_value(array)
    layer.eval()
    specs = [InputSpec(sizes(each), str(np.dtype(each.dtype)), key) for key, each in program.inputs.items()]
    paddle.jit.save(layer, str(folder / name), specs)

    def run(arrays):
        with paddle.no_grad():
            outputs = listed(layer(*(paddle.to_tensor(array) for array in arrays.values())))
        return {str(number): each.numpy() for number, each in enumerate(outputs)}

    return run


def saved_older(name: str, folder: Path) -> Run:
    """Saves a layer in a folder as a program of the older representation; returns a function that runs it."""
    program = PROGRAMS[name]
    main, startup = paddle.static.Program(), paddle.static.Program()
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.program_guard(main, startup):
        fed = [
            paddle.static.data(key, sizes(each), str(np.dtype(each.dtype)))
            for key, each in program.inputs.items()
        ]
        layer = program.layer()
        layer.eval()
        fetched = listed(layer(*fed))
    executor.run(startup)
    buffers = dict(layer.named_buffers())
    for key, array in statistics(layer).items():
        paddle.static.global_scope().find_var(buffers[key].name).get_tensor().set(array, paddle.CPUPlace())
    paddle.static.save_inference_model(str(folder / name), fed, fetched, executor, program=main)
    used = main.clone(for_test=True)

    def run(arrays):
        found = executor.run(used, feed=dict(arrays), fetch_list=fetched)
        return {str(number): np.asarray(each) for number, each in enumerate(found)}

    return run


if __name__ == "__main__":
    if OLDER:
        paddle.enable_static()
    recorder = Recorder("paddle_older" if OLDER else "paddle", f"paddlepaddle {paddle.__version__}")
    names = [name for name in sys.argv[1:] if not name.startswith("--")]
    for name in names or [name for name, program in PROGRAMS.items() if program.older == OLDER]:
        paddle.seed(0)
        program, run = PROGRAMS[name], (saved_older if OLDER else saved)(name, recorder.folder)
        file = f"{name}.pdmodel" if OLDER else f"{name}.json"
        about = (program.layer.__doc__ or "").partition("\n")[0].removesuffix(".")
        record(recorder, name, file, about, program.inputs, run, program.steps)
    if not names:
        recorder.pack()
        if not OLDER:
            subprocess.run([sys.executable, __file__, "--older"], check=True)
