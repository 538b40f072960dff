"""Known cells recognised in a step, however it is written.

    z = sigmoid([h | x] @ Z);  r = 1 / (1 + exp(-[h | x] @ R))          gru: reset='before', update='write'
    n = tanh([r * h | x] @ N);  h' = (1 - z) * h + z * n           ->   W = [R[2:] | Z[2:] | N[2:]]
                                                                        R = [R[:2] | Z[:2] | N[:2]]

An engine with fixed cells (oneDNN, cuDNN) or a file format with fixed operators (ONNX) can then take a
recurrence that was written by hand. The arrays of the cell are computed from the parameters of the
recurrence.

The memories after a step are written as polynomials of atoms (`polynomial.py`, `values.py`), in a normal form
in which equal functions are equal however they are written (`functions.py`). They are compared with the
equations of each known cell (`cells.py`, one row each). `weights.py` builds the net that computes the arrays;
`check.py` compares both sides on random numbers.

Recognition runs on the step as traced, before all passes: hoisting moves `x @ W + b` out of the body, and
with it most of the arrays. The passes `split_concat_matmul` and `split` need not run first, because
polynomials are computed for ranges of features, not for whole nodes. Outputs do not affect recognition:
`Recognised.outputs` says which of them are h or c, and the pass `sink` moves the others after the loop.
"""

from stepnet.compiler.plan.recognise.check import check
from stepnet.compiler.plan.recognise.known import Recognised, Refused, recognise

__all__ = ["Recognised", "Refused", "check", "recognise"]
