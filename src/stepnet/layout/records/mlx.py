"""MLX: nn.RNN, nn.GRU and nn.LSTM; early releases had the inputs' and recurrent weights transposed."""

from stepnet.layout.record import Evidence, Record

NOW = Evidence("python/mlx/nn/layers/recurrent.py of MLX", "MLX 0.32.4 on the CPU", "0.18 and later")
EARLY = Evidence("python/mlx/nn/layers/recurrent.py of MLX 0.7", versions="the first releases")
FIRST_STEP = "MLX up to 0.31 leaves bhn out in the first step unless it is given a hidden state (mlx#3249)"


def records(framework: str, weights: str, recurrent: str, evidence: Evidence) -> tuple[Record, ...]:
    """Returns the layouts (arrangements of weights) of MLX's three layers.

    framework: the first part of their names. weights, recurrent: the axes of the inputs' and the recurrent
    matrices, such as "gates x" and "gates k": "gates" stands for the axis of gates and hidden units, x for
    the inputs, k for the previous h. evidence: the source and the test run of the layouts.
    """

    def matrix(parameter: str, axes: str, gates: str) -> str:
        """Writes a matrix in the notation, such as "W[(g:rzn h) x]" for "W", "gates x" and "rzn"."""
        return f"{parameter}[{axes.replace('gates', f'(g:{gates} h)')}]"

    return (
        Record(
            f"{framework}.rnn",
            "rnn",
            {"Wxh": matrix("W", weights, "n"), "Whh": matrix("R", recurrent, "n"), "bias?": "b[h]"},
            {},
            evidence,
        ),
        Record(
            f"{framework}.gru",
            "gru",
            {
                "Wx": matrix("W", weights, "rzn"),
                "Wh": matrix("R", recurrent, "rzn"),
                "b?": "b[(g:rzn h)]",
                "bhn?": "d_n[h]",
            },
            {"reset": "after"},
            evidence,
            notes=(FIRST_STEP,),
        ),
        Record(
            f"{framework}.lstm",
            "lstm",
            {
                "Wx": matrix("W", weights, "ifgo"),
                "Wh": matrix("R", recurrent, "ifgo"),
                "bias?": "b[(g:ifgo h)]",
            },
            {},
            evidence,
        ),
    )


RECORDS = (*records("mlx", "gates x", "gates k", NOW), *records("mlx_early", "x gates", "k gates", EARLY))
