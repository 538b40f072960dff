"""Deeplearning4j: LSTM and GravesLSTM. Its name i is the candidate, and its name g the input gate; the last
three columns of the recurrent weights of a GravesLSTM are its peepholes.
"""

from stepnet.layout.record import Evidence, Record
from stepnet.layout.semantics import Setting, same

EVIDENCE = Evidence("LSTMHelpers.java and KerasLstm.java of Deeplearning4j", versions="0.5 to 1.0 beta")
FUNCTION = {
    "gate_activation": Setting(
        "gateActivationFunction", same("sigmoid", "hard_sigmoid_fifth", "tanh"), "sigmoid"
    ),
    "candidate_activation": Setting("activation", same("tanh", "sigmoid", "relu", "softsign"), "tanh"),
    "output_activation": Setting("activation", same("tanh", "sigmoid", "relu", "softsign"), "tanh"),
}
WEIGHTS = {"W": "W[x (g:gfoi h)]"}
BIAS = {"b": "b[1 (g:gfoi h)]"}

RECORDS = (
    Record("dl4j.lstm", "lstm", {**WEIGHTS, "RW": "R[k (g:gfoi h)]", **BIAS}, FUNCTION, EVIDENCE),
    Record(
        "dl4j.graves_lstm",
        "lstm",
        {**WEIGHTS, "RW": "R[k (g:gfoi h)] | p[h g:foi]", **BIAS},
        FUNCTION,
        EVIDENCE,
    ),
)
