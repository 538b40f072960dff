"""Makes coreml.tar.xz and coreml.json: models that coremltools converted from PyTorch, and what PyTorch
computes, as Core ML runs on macOS alone.

Needs coremltools beside what the tests need: python tests/conformance/data/make_coreml.py
"""

import warnings

import coremltools as ct
import torch
from recording import Corpus
from torch_making import about, batch, called, filled
from torch_models import MODELS

NAMES = ("lstm_steps", "by_last_state", "voice")
RECURRENT = ("lstm", "gru", "rnn", "const")


def main() -> None:
    warnings.simplefilter("ignore")
    corpus = Corpus("coremltools", f"coremltools {ct.__version__}, torch {torch.__version__}")
    for name in NAMES:
        made, module = MODELS[name], filled(name)
        given = {key: array[:1] for key, array in batch(name, made).items()}
        traced = torch.jit.trace(module, tuple(map(torch.from_numpy, given.values())))
        program = ct.convert(
            traced,
            inputs=[ct.TensorType("frames", given["frames"].shape)],
            convert_to="mlprogram",
            compute_precision=ct.precision.FLOAT32,
            skip_model_load=True,
        )
        program.save(str(corpus.folder / f"{name}_coreml.mlpackage"))
        block = program.get_spec().mlProgram.functions["main"].block_specializations
        operations = [one for part in block.values() for one in part.operations]
        corpus.add(
            lambda given, module=module, made=made: called(module, made, given),
            batch(name, made),
            results="row 0",
            name=f"{name}_coreml",
            kind="CoreML",
            file=f"{name}_coreml.mlpackage",
            about=f"{about(name)}; coremltools.convert",
            around={
                f"{one.type}_{place}": one.type
                for place, one in enumerate(operations)
                if one.type not in RECURRENT
            },
            inputs=made.inputs,
            limits="one sequence of 7 steps, as PyTorch computes it",
        )
    corpus.pack("coreml")


if __name__ == "__main__":
    main()
