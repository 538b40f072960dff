"""ONNX: the inputs W, R, B and P of the operators RNN, GRU and LSTM; a node is one layer, of both directions.

The attribute linear_before_reset says whether a GRU resets before or after the recurrent product. Exporters
have omitted it by mistake, so the user states it.
"""

from stepnet.layout.record import Evidence, Record
from stepnet.layout.semantics import Setting

EVIDENCE = Evidence("the operator schemas of ONNX 1.23, opset 22", "onnxruntime 1.31.1", "opset 7 and later")
NAMES = {
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "relu": "Relu",
    "hard_sigmoid_fifth": "HardSigmoid",
    "softsign": "Softsign",
    "softplus": "Softplus",
    "elu": "Elu",
}
CLIP = Setting("clip", usual=0.0, unstated=0.0)


def activations(*fields: tuple[str, str]) -> dict[str, Setting]:
    """Returns, for the records of ONNX's operators, a setting for each entry of the attribute `activations`,
    by field of `Semantics`. fields: for each entry, in order, the field and the usual value.
    """
    return {
        field: Setting(f"activations[{index}]", NAMES, usual) for index, (field, usual) in enumerate(fields)
    }


GATE, CANDIDATE, OUTPUT = (
    ("gate_activation", "sigmoid"),
    ("candidate_activation", "tanh"),
    ("output_activation", "tanh"),
)
RECORDS = (
    Record(
        "onnx.rnn",
        "rnn",
        {"W": "W[D h x]", "R": "R[D h k]", "B?": "b[D h] | d[D h]"},
        {**activations(CANDIDATE), "clip": CLIP},
        EVIDENCE,
    ),
    Record(
        "onnx.gru",
        "gru",
        {"W": "W[D (g:zrn h) x]", "R": "R[D (g:zrn h) k]", "B?": "b[D (g:zrn h)] | d[D (g:zrn h)]"},
        {
            "reset": Setting("linear_before_reset", {"after": 1, "before": 0}),
            **activations(GATE, CANDIDATE),
            "clip": CLIP,
        },
        EVIDENCE,
    ),
    Record(
        "onnx.lstm",
        "lstm",
        {
            "W": "W[D (g:iofg h) x]",
            "R": "R[D (g:iofg h) k]",
            "B?": "b[D (g:iofg h)] | d[D (g:iofg h)]",
            "P?": "p[D (g:iof h)]",
        },
        {**activations(GATE, CANDIDATE, OUTPUT), "clip": CLIP},
        EVIDENCE,
    ),
)
