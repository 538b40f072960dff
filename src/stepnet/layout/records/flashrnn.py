"""FlashRNN: the recurrent weights and biases that its functions take, for one head, as GHDP and GHD.

FlashRNN takes projected inputs Wx. The inputs' weights are the caller's: here [gates, 1, hidden, inputs],
with the gates in the order of Wx. For a GRU, inputs' weights, recurrent weights and biases order the gates
differently, and the first of the four biases is the candidate's recurrent bias.
"""

from stepnet.layout.record import Evidence, Record

EVIDENCE = Evidence(
    "flashrnn/flashrnn.py and vanilla/ of FlashRNN 1.0.8", "the vanilla functions of FlashRNN 1.0.8", "1.0"
)
RECORDS = (
    Record("flashrnn.rnn", "rnn", {"W": "W[1 1 h x]", "R": "R[1 1 h k]", "b": "b[1 1 h]"}, {}, EVIDENCE),
    Record(
        "flashrnn.gru",
        "gru",
        {"W": "W[g:rzn 1 h x]", "R": "R[g:nrz 1 h k]", "b": "d_n[1 1 h] / b[g:rzn 1 h]"},
        {"reset": "after"},
        EVIDENCE,
        notes=("with several heads the recurrent weights are block-diagonal, which stepnet does not read",),
    ),
    Record(
        "flashrnn.lstm",
        "lstm",
        {"W": "W[g:ifgo 1 h x]", "R": "R[g:ifgo 1 h k]", "b": "b[g:ifgo 1 h]"},
        {},
        EVIDENCE,
    ),
)
