"""The dtype bfloat16, which NumPy knows by this name once ml_dtypes is imported.

That takes 4 to 8 ms. Every module that makes or runs nets imports this one, through their types; a process
that runs a stored call alone does without.
"""

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
