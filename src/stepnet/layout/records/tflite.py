"""TFLite: the tensors of UNIDIRECTIONAL_SEQUENCE_LSTM and _RNN by the names of lstm_shared.h, float
weights.
"""

from stepnet.layout.record import Evidence, Record
from stepnet.layout.semantics import Setting

SOURCE = "tensorflow/lite/kernels/lstm_shared.h and unidirectional_sequence_lstm.cc"
READ = Evidence(SOURCE, versions="TensorFlow 2")
EVIDENCE = Evidence(SOURCE, "the interpreter of TensorFlow 2.21.0", "TensorFlow 2")
WAYS = ("fw_", "bw_")  # of the operators that run in both directions
ACTIVATIONS = {"tanh": "TANH", "relu": "RELU", "linear": "NONE"}
NAMES = {"i": "input", "f": "forget", "g": "cell", "o": "output"}
CLIPS = {"cell_clip": Setting("cell_clip", usual=0.0), "projection_clip": Setting("proj_clip", usual=0.0)}


def arrays(gates: str) -> dict[str, str]:
    """Returns the notation of each tensor of TFLite's LSTM (its parameter and its axes), by name, for these
    gates (letters).

    "W_i[h x]" is the inputs' weights W of gate i, with the axes hidden h and inputs x; R the recurrent
    weights, with the axis k of the previous output; p the peepholes, b the bias. A name in ? is optional.
    """
    return {
        **{f"input_to_{NAMES[gate]}_weights": f"W_{gate}[h x]" for gate in gates},
        **{f"recurrent_to_{NAMES[gate]}_weights": f"R_{gate}[h k]" for gate in gates},
        **{f"cell_to_{NAMES[gate]}_weights?": f"p_{gate}[h]" for gate in gates if gate != "g"},
        **{f"{NAMES[gate]}_gate_bias": f"b_{gate}[h]" for gate in gates},
    }


PROJECTION = {"projection_weights": "P[y h]", "projection_bias?": "q[y]"}
RECORDS = (
    Record(
        "tflite.rnn",
        "rnn",
        {"input_weights": "W[h x]", "recurrent_weights": "R[h k]", "bias": "b[h]"},
        {"candidate_activation": Setting("fused_activation_function", ACTIVATIONS, "tanh")},
        EVIDENCE,
        WAYS,
    ),
    Record("tflite.lstm", "lstm", arrays("ifgo"), CLIPS, EVIDENCE, WAYS),
    Record("tflite.lstm_projection", "lstm", arrays("ifgo") | PROJECTION, CLIPS, READ, WAYS),
    Record("tflite.lstm_coupled", "lstm", arrays("fgo"), {"coupled": True, **CLIPS}, EVIDENCE, WAYS),
    Record(
        "tflite.basic_lstm",
        "lstm",
        {"weights": "W[(g:igfo h) x] | R[(g:igfo h) k]", "biases": "b[(g:igfo h)]"},
        {},
        EVIDENCE,
        WAYS,
        notes=("the LSTM of five inputs, kernel_type BASIC, whose weights take [x, h]",),
    ),
)
