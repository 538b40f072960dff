"""Subclasses of Keras' recurrent layers that run their loop over the steps as machine code."""

from typing import Any

from stepnet.keras.installed import installed
from stepnet.keras.overrides import with_overrides

keras: Any = installed()


@with_overrides
class SimpleRNN(keras.layers.SimpleRNN):
    """`keras.layers.SimpleRNN`, run by stepnet. See `LSTM`.

    >>> import numpy as np, stepnet.keras
    >>> stepnet.keras.SimpleRNN(4)(np.ones((2, 5, 3))).shape
    torch.Size([2, 4])
    """


@with_overrides
class LSTM(keras.layers.LSTM):
    """`keras.layers.LSTM`, run by stepnet, with the arguments, variables, config and results of Keras' layer.

    Masks of any shape, both dropouts, stateful and given states, and `go_backwards` run in machine code, with
    gradients. Masked steps are skipped. Keras draws the dropout masks, so a seed gives the numbers that it
    gives in Keras. `unroll=True` unrolls the generated loop.

    Keras' own loop runs on devices that the engine does not take, in exported models, and for steps with an
    operation that stepnet does not have. `stepnet.keras.report` says which layers that concerns, and why.

    One argument is added: `engine=` is an engine, or several in order of preference, as for a call of
    `stepnet.RNN`. The config of a layer has it where it is not "auto".

    Raises:
        ValueError: For arguments that Keras' layer refuses.
        InputError: For an engine that is not known.
        RefusedError: In a call, if no engine of `engine` runs the layer.

    >>> import keras, numpy as np, stepnet.keras
    >>> theirs, ours = keras.layers.LSTM(4), stepnet.keras.LSTM(4)
    >>> x = np.ones((2, 5, 3), "float32")
    >>> theirs.build(x.shape), ours.build(x.shape)
    (None, None)
    >>> ours.set_weights(theirs.get_weights())
    >>> bool(np.allclose(ours(x).detach(), theirs(x).detach(), atol=1e-6))
    True
    >>> stepnet.keras.LSTM(4, engine="interpret").get_config()["engine"]
    'interpret'
    """


@with_overrides
class GRU(keras.layers.GRU):
    """`keras.layers.GRU`, run by stepnet, with its reset before or after the recurrent product. See `LSTM`.

    >>> import numpy as np, stepnet.keras
    >>> outputs, h = stepnet.keras.GRU(4, return_sequences=True, return_state=True)(np.ones((2, 5, 3)))
    >>> outputs.shape, h.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 4]))
    """


@with_overrides
class RNN(keras.layers.RNN):
    """`keras.layers.RNN`, run by stepnet: over any cell, also one of your own, or `StackedRNNCells`.

    The step of the cell is traced and compiled. If an attribute of the cell changes, the step is traced
    again. The sequences may be a structure of several tensors, which the cell gets step by step.

    >>> import keras, numpy as np, stepnet.keras
    >>> cells = [keras.layers.LSTMCell(4), keras.layers.GRUCell(3)]
    >>> stepnet.keras.RNN(keras.layers.StackedRNNCells(cells))(np.ones((2, 5, 3))).shape
    torch.Size([2, 3])
    """


@with_overrides
class Bidirectional(keras.layers.Bidirectional):
    """`keras.layers.Bidirectional`. Both of its layers are run by stepnet if the given layer is.

    >>> import numpy as np, stepnet.keras
    >>> stepnet.keras.Bidirectional(stepnet.keras.GRU(4))(np.ones((2, 5, 3))).shape
    torch.Size([2, 8])
    """


@with_overrides
class TimeDistributed(keras.layers.TimeDistributed):
    """`keras.layers.TimeDistributed`, which calls its layer once for all steps where that is known to be
    equal.

    Keras calls the layer once for each step. If class and settings of the layer prove that it computes each
    row separately, stepnet joins the batch and time axes and calls it once. Layers in training with dropout
    or batch normalisation, layers that compute across rows, and layers with functions of the user run as in
    Keras.

    >>> import keras, numpy as np, stepnet.keras
    >>> stepnet.keras.TimeDistributed(keras.layers.Dense(4))(np.ones((2, 5, 3))).shape
    torch.Size([2, 5, 4])
    """
