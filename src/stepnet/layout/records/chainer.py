"""Chainer: L.LSTM, whose gates are interleaved, the GRU links, and the NStep layers with an array per
gate.
"""

from typing import Any

from stepnet.layout.record import Evidence, Record
from stepnet.layout.semantics import Setting, same

LSTM = Evidence("chainer/functions/rnn/lstm.py of Chainer", "Chainer 7.8.1", "1.5 to 7")
GRU = Evidence("chainer/links/rnn/gru.py of Chainer", "Chainer 7.8.1", "1.5 to 7")
NSTEP = Evidence(
    "chainer/functions/rnn/n_step_lstm.py, n_step_gru.py and n_step_rnn.py of Chainer",
    "Chainer 7.8.1",
    "2 to 7",
)

CHILDREN = (
    "the link's children are numbered by layer and direction, which is what {C} stands for: 2 layer + "
    "direction; one bidirectional layer of square weights looks like two layers; --from decides"
)


def nstep(gates: str, child: str) -> dict[str, str]:
    """Returns the notation of each array (its parameter and axes) by name, for one layer (child) of Chainer's
    NStep links: the arrays of the input (w0, b0, w1, ...) are numbered first, then those of the recurrence.

    "W_r[h x]" is the inputs' weights W of gate r, with the axes hidden h and inputs x; R the recurrent
    weights, with the axis k of the previous h; b and d the input and the recurrent bias. gates: the gates'
    letters, in order. child: the template of the child's name, with the layer's field.
    """
    count, arrays = len(gates), dict[str, str]()
    for index, gate in enumerate(gates):
        arrays |= {f"{child}/w{index}": f"W_{gate}[h x]", f"{child}/b{index}": f"b_{gate}[h]"}
        arrays |= {f"{child}/w{count + index}": f"R_{gate}[h k]", f"{child}/b{count + index}": f"d_{gate}[h]"}
    return arrays


def linear(suffix: str, gate: str) -> dict[str, str]:
    """Returns, for the record of Chainer's GRU, the notation of each array of a gate's two Linear links (its
    parameter and its axes), by array name: W of the input, U of the recurrence.

    "W_r[h x]" is the inputs' weights W of gate r, with the axes hidden h and inputs x; R the recurrent
    weights, with the axis k of the previous h; b and d are the biases of both. suffix: the end of the links'
    names, such as "_r". gate: stepnet's letter of the gate.
    """
    return {
        f"W{suffix}/W": f"W_{gate}[h x]",
        f"W{suffix}/b": f"b_{gate}[h]",
        f"U{suffix}/W": f"R_{gate}[h k]",
        f"U{suffix}/b": f"d_{gate}[h]",
    }


# The NStep links by their cell, with the order of their gates and what their numbers parametrise.
NSTEPS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("rnn", "n", {"candidate_activation": Setting("activation", same("tanh", "relu"))}),
    ("gru", "rzn", {"reset": "after"}),
    ("lstm", "ifgo", {}),
)
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
    # The NStep links of one and of both directions; the latter have a child for each layer and direction.
    *(
        Record(
            f"chainer.nstep_{both}{cell}", cell, nstep(gates, child), semantics, NSTEP, ways=ways, notes=notes
        )
        for cell, gates, semantics in NSTEPS
        for both, child, ways, notes in (("", "{L}", 1, ()), ("bi", "{C}", 2, (CHILDREN,)))
    ),
)
