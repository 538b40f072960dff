"""FlashRNN: the recurrent weights and biases that its functions take, for one head, as GHDP and GHD.

The inputs' weights are the caller's own: here [gates, 1, hidden, inputs], in the order that Wx has its gates.
The three parts of a GRU have an order each, and its four biases begin with the candidate's recurrent one.
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
        notes=("with more heads the recurrent weights are blocks along a diagonal, which is not read",),
    ),
    Record(
        "flashrnn.lstm",
        "lstm",
        {"W": "W[g:ifgo 1 h x]", "R": "R[g:ifgo 1 h k]", "b": "b[g:ifgo 1 h]"},
        {},
        EVIDENCE,
    ),
)
