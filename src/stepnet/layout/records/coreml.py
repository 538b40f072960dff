"""Core ML: the operator lstm of the MIL; there is no record of its GRU, because two of Apple's documents
disagree on its reset.
"""

from stepnet.layout.record import Evidence, Record
from stepnet.layout.semantics import Setting, same

RECORDS = (
    Record(
        "coreml.lstm",
        "lstm",
        {
            "weight_ih{D}": "W[(g:ifog h) x]",
            "weight_hh{D}": "R[(g:ifog h) k]",
            "bias{D}?": "b[(g:ifog h)]",
            "peephole{D}?": "p[(g:ifo h)]",
        },
        {
            "gate_activation": Setting("recurrent_activation", same("sigmoid", "tanh", "relu"), "sigmoid"),
            "candidate_activation": Setting("cell_activation", same("tanh", "sigmoid", "relu"), "tanh"),
            "output_activation": Setting("activation", same("tanh", "sigmoid", "relu"), "tanh"),
            "clip": Setting("clip", usual=0.0),
        },
        Evidence(
            "coremltools/converters/mil/mil/ops/defs/iOS15/recurrent.py of coremltools 9.0",
            versions="iOS 15 on",
        ),
        ("", "_back"),
    ),
)
