"""Chainer: L.LSTM, whose gates are interleaved, the GRU links, and the NStep layers with an array per
gate.
"""

from stepnet.layout.record import Evidence, Record
from stepnet.layout.semantics import Setting, same

LSTM = Evidence("chainer/functions/rnn/lstm.py of Chainer", "Chainer 7.8.1", "1.5 to 7")
GRU = Evidence("chainer/links/rnn/gru.py of Chainer", "Chainer 7.8.1", "1.5 to 7")
NSTEP = Evidence(
    "chainer/functions/rnn/n_step_lstm.py, n_step_gru.py and n_step_rnn.py of Chainer",
    "Chainer 7.8.1",
    "2 to 7",
)
CHILD = (
    "Chainer numbers the children of an NStep link by layer; those of one with two directions, which it "
    "numbers by 2 layer + direction, are called forward/0 and backward/0 here"
)


def nstep(gates: str) -> dict[str, str]:
    """The arrays of the children of an NStep link, one a layer: w0 b0 w1 b1 ..., the inputs' first."""
    count, found = len(gates), dict[str, str]()
    for place, gate in enumerate(gates):
        found |= {f"{{L}}/w{place}": f"W_{gate}[h x]", f"{{L}}/b{place}": f"b_{gate}[h]"}
        found |= {f"{{L}}/w{count + place}": f"R_{gate}[h k]", f"{{L}}/b{count + place}": f"d_{gate}[h]"}
    return found


def linear(suffix: str, gate: str) -> dict[str, str]:
    """The two Linear links of a gate of a GRU."""
    return {
        f"W{suffix}/W": f"W_{gate}[h x]",
        f"W{suffix}/b": f"b_{gate}[h]",
        f"U{suffix}/W": f"R_{gate}[h k]",
        f"U{suffix}/b": f"d_{gate}[h]",
    }


RECORDS = (
    Record(
        "chainer.lstm",
        "lstm",
        {"upward/W": "W[(h g:gifo) x]", "upward/b": "b[(h g:gifo)]", "lateral/W": "R[(h g:gifo) k]"},
        {},
        LSTM,
    ),
    Record(
        "chainer.gru",
        "gru",
        {**linear("_r", "r"), **linear("_z", "z"), **linear("", "n")},
        {"reset": "before", "update": "write"},
        GRU,
        notes=(
            "StatefulGRU leaves all recurrent biases out in the first step unless set_state gives it zeros",
        ),
    ),
    Record(
        "chainer.nstep_rnn",
        "rnn",
        nstep("n"),
        {"candidate_activation": Setting("activation", same("tanh", "relu"))},
        NSTEP,
        notes=(CHILD,),
    ),
    Record("chainer.nstep_gru", "gru", nstep("rzn"), {"reset": "after"}, NSTEP, notes=(CHILD,)),
    Record("chainer.nstep_lstm", "lstm", nstep("ifgo"), {}, NSTEP, notes=(CHILD,)),
)
