"""Known cells recognised in a step of any spelling.

    z = sigmoid([h | x] @ Z);  r = 1 / (1 + exp(-[h | x] @ R))          gru: reset before, update write
    n = tanh([r * h | x] @ N);  h' = (1 - z) * h + z * n           ->   W = [R[2:] | Z[2:] | N[2:]]
                                                                        R = [R[:2] | Z[:2] | N[:2]]

An engine with fixed cells (oneDNN, cuDNN) and a file format with fixed operators (ONNX) can then take a
recurrence that somebody wrote by hand, and the arrays that it wants are computed from that one's parameters.

The memories after a step are written as polynomials of atoms (`polynomial.py`, `values.py`), in which equal
functions are equal however they are spelled (`functions.py`), and compared with the equations of each known
cell (`cells.py`, one row each). `weights.py` makes the net of the arrays; `check.py` compares both sides on
random numbers.

It is asked of a step as it was traced, ahead of all passes: hoisting moves `x @ W + b` out of the body, and
with it most of the arrays. The passes that take spellings apart, `part` and `split`, are not needed first,
since a polynomial is asked for features, not for nodes. Outputs do not matter to recognition:
`Recognised.outputs` says which of them are h or c, and the pass `sink` takes the others behind the loop.
"""

from stepnet.plan.recognise.check import check
from stepnet.plan.recognise.known import Recognised, Refused, recognise

__all__ = ["Recognised", "Refused", "check", "recognise"]
