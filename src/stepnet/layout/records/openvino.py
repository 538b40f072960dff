"""OpenVINO: the inputs W, R and B of RNNSequence, GRUSequence and LSTMSequence; biases are summed."""

from stepnet.layout.record import Evidence, Record
from stepnet.layout.semantics import Setting, same

EVIDENCE = Evidence(
    "docs/ops/sequence/ of OpenVINO: LSTMCell_1, GRUSequence_5, RNNSequence_5",
    "OpenVINO 2026.4 on the CPU",
    "2021 on",
)
GATE = Setting("activations[0]", same("sigmoid", "tanh", "relu"), "sigmoid")
CANDIDATE = Setting("activations[1]", same("tanh", "sigmoid", "relu"), "tanh")
OUTPUT = Setting("activations[2]", same("tanh", "sigmoid", "relu"), "tanh")
CLIP = Setting("clip", usual=0.0)
GRU = {"gate_activation": GATE, "candidate_activation": CANDIDATE, "clip": CLIP}
WEIGHTS = {"W": "W[D (g:zrn h) x]", "R": "R[D (g:zrn h) k]"}

RECORDS = (
    Record(
        "openvino.rnn",
        "rnn",
        {"W": "W[D h x]", "R": "R[D h k]", "B": "b[D h]"},
        {
            "candidate_activation": Setting("activations[0]", same("tanh", "sigmoid", "relu"), "tanh"),
            "clip": CLIP,
        },
        EVIDENCE,
    ),
    Record(
        "openvino.gru",
        "gru",
        {**WEIGHTS, "B": "b[D (g:zrn h)] | d_n[D h]"},
        {"reset": "after", **GRU},
        EVIDENCE,
        notes=("linear_before_reset=true is the layout with four biases",),
    ),
    Record(
        "openvino.gru_reset_before",
        "gru",
        {**WEIGHTS, "B": "b[D (g:zrn h)]"},
        {"reset": "before", **GRU},
        EVIDENCE,
    ),
    Record(
        "openvino.lstm",
        "lstm",
        {"W": "W[D (g:figo h) x]", "R": "R[D (g:figo h) k]", "B": "b[D (g:figo h)]"},
        {
            "gate_activation": GATE,
            "candidate_activation": CANDIDATE,
            "output_activation": OUTPUT,
            "clip": CLIP,
        },
        EVIDENCE,
    ),
)
