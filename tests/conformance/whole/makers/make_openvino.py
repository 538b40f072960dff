"""Makes saved/openvino.tar.xz: models that OpenVINO converted from ONNX.

    .peers/openvino/bin/python tests/conformance/whole/make_openvino.py FOLDER

needs what the group peer-openvino of pyproject.toml has, and a folder that openvino_models.py wrote.
"""

import sys
from pathlib import Path

import numpy as np
import openvino as ov
from recording import Arrays, Recorder, generator

LENGTHS = (20, 18, 25)
WORDS = 11


def drawn(name: str, entry: str, rows: int, length: int) -> Arrays:
    """Returns words, or frames of five numbers, that depend on names alone."""
    random = generator(f"{name}/{rows}/{length}")
    if entry == "words":
        return {entry: random.integers(0, WORDS, (rows, length))}
    return {entry: random.normal(size=(rows, length, 5)).astype(np.float32)}


def add(recorder: Recorder, source: Path) -> None:
    """Converts a model, saves it, and records what OpenVINO's CPU gives."""
    model, name = ov.convert_model(source), source.stem
    path = recorder.folder / f"{name}.xml"
    ov.save_model(model, path, compress_to_fp16=False)
    compiled = ov.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    entry = compiled.inputs[0].any_name

    def run(given: Arrays) -> Arrays:
        found = compiled(list(given.values()))
        return {one.any_name: np.array(found[one]) for one in compiled.outputs}

    padded = drawn(name, entry, 3, LENGTHS[0])
    alone = [drawn(name, entry, 1, length) for length in LENGTHS]
    about = f"{name} of openvino_models.py, converted from ONNX"
    recorder.add(name, path.name, about, run, padded, alone)


def main(folder: Path) -> None:
    """Makes the archive of a folder of ONNX files."""
    recorder = Recorder("openvino", f"openvino {ov.get_version()}")
    for source in sorted(folder.glob("*.onnx")):
        add(recorder, source)
    recorder.pack()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
