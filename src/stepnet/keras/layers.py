"""Keras' recurrent layers as subclasses whose `inner_loop` is compiled."""

from typing import Any

from stepnet.keras.installed import installed
from stepnet.keras.loop import inner_loop

keras: Any = installed()
registered: Any = keras.saving.register_keras_serializable(package="stepnet")


class Compiled:
    """The loop of a layer of Keras, whose class comes behind this one."""

    def inner_loop(
        self: Any, sequences: Any, initial_state: Any, mask: Any, training: Any = False
    ) -> tuple[Any, Any, Any]:
        """The last output, the outputs and the last states; see the class in Keras."""
        return inner_loop(self, super().inner_loop, sequences, initial_state, mask, training)


@registered
class SimpleRNN(Compiled, keras.layers.SimpleRNN):
    pass


@registered
class LSTM(Compiled, keras.layers.LSTM):
    pass


@registered
class GRU(Compiled, keras.layers.GRU):
    pass


@registered
class RNN(Compiled, keras.layers.RNN):
    pass
