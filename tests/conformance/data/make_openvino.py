"""Makes openvino.tar.xz and openvino.json: models that OpenVINO converted from ONNX, and what it computes.

Needs what the group peer-openvino of pyproject.toml has, in an environment of its own, and onnx.tar.xz, of
which it takes files: python tests/conformance/data/make_openvino.py
"""

import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import openvino as ov
from openvino import opset8 as op
from recording import FEATURES, HERE, Arrays, Corpus, padded, weights

HIDDEN = 5
CONVERTED = ("tagger_legacy", "voice_legacy", "by_last_state_legacy")
RECURRENT = ("LSTMSequence", "GRUSequence", "RNNSequence")
PASSIVE = ("Parameter", "Result", "Constant")


def gru() -> ov.Model:
    """A GRUSequence over batches of one, its axis of directions taken away."""
    x = op.parameter([1, -1, FEATURES], np.float32, name="frames")
    shapes = {"W": (1, 3 * HIDDEN, FEATURES), "R": (1, 3 * HIDDEN, HIDDEN), "B": (1, 4 * HIDDEN)}
    arrays = [op.constant(weights("gru", key, shape)) for key, shape in shapes.items()]
    steps = op.gather(op.shape_of(x), op.constant(np.array([1])), op.constant(np.array(0)))
    state = op.constant(np.zeros((1, 1, HIDDEN), "f4"))
    made = op.gru_sequence(x, state, steps, *arrays, HIDDEN, "forward", linear_before_reset=True)
    made.set_friendly_name("gru")
    return ov.Model([op.squeeze(made.output(0), op.constant(np.array([1])))], [x], "gru")


def add(corpus: Corpus, name: str, model: ov.Model, about: str, **line: object) -> None:
    """Saves and runs one model."""
    path = corpus.folder / f"{name}.xml"
    ov.save_model(model, path, compress_to_fp16=False)
    compiled = ov.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    entry = next(iter(compiled.inputs[0].names), "frames")

    def run(given: Arrays) -> Arrays:
        results = compiled(list(given.values()))
        return {f"outputs_{place}": np.array(array) for place, array in enumerate(results.values())}

    corpus.add(
        run,
        {entry: padded(name, entry)},
        name=name,
        kind="OpenVINO",
        file=path.name,
        about=about,
        around={
            part.get_friendly_name(): part.get_type_name()
            for part in model.get_ops()
            if part.get_type_name() not in (*RECURRENT, *PASSIVE)
        },
        inputs={entry: entry},
        **line,
    )


def main() -> None:
    corpus = Corpus("OpenVINO", ov.get_version())
    with TemporaryDirectory() as folder, tarfile.open(HERE / "onnx.tar.xz") as packed:
        packed.extractall(folder, filter="data")
        for name in CONVERTED:
            model = ov.convert_model(Path(folder) / f"{name}.onnx")
            add(corpus, f"{name.removesuffix('_legacy')}_openvino", model, f"{name} of ONNX, converted")
    one = "batches of one sequence"
    add(
        corpus,
        "gru_openvino",
        gru(),
        "GRUSequence, its axis of directions taken away",
        results="row 0",
        limits=one,
    )
    corpus.pack("openvino")


if __name__ == "__main__":
    main()
