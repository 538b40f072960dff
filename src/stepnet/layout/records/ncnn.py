"""ncnn: the layers RNN, GRU and LSTM, in the order of their .bin file; both directions in the first axis."""

from stepnet.layout.record import Evidence, Record

EVIDENCE = Evidence(
    "src/layer/rnn.cpp, gru.cpp and lstm.cpp of ncnn", "ncnn 1.0.20261020", "20210000 and later"
)


def arrays(gates: str, bias: str) -> dict[str, str]:
    """Returns, for the records of ncnn's layers, the notation of each array (the parameter that it holds, and
    its axes), by array name.

    "W[D (g:rzn h) x]" is the inputs' weights W with the axes directions D, (gates g times hidden h) and
    inputs x; R the recurrent weights, with the axis k of the previous h. gates: the gates' letters, in order.
    bias: the notation of the bias.
    """
    return {
        "weight_xc_data": f"W[D (g:{gates} h) x]",
        "bias_c_data": bias,
        "weight_hc_data": f"R[D (g:{gates} h) k]",
    }


RECORDS = (
    Record("ncnn.rnn", "rnn", arrays("n", "b[D h]"), {}, EVIDENCE),
    Record("ncnn.gru", "gru", arrays("rzn", "b[D g:rzn h] /1 d_n[D 1 h]"), {"reset": "after"}, EVIDENCE),
    Record("ncnn.lstm", "lstm", arrays("ifog", "b[D g:ifog h]"), {}, EVIDENCE),
)
