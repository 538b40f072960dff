"""The sizes of matrices that are run in chunks of steps (`chunked/form.py`), and whose gradients are."""

from stepnet.compiler.plan.load import MatrixSizes
from stepnet.compiler.targets.cuda.chunked.decay_form import decay_form
from stepnet.compiler.values.records import dataclass

TILE_ROWS = 16
"""The rows of a product of tensor cores."""
FIRST = 16
"""The values of a head that a block has at least."""
MOST_KEYS = 256


def without_chunks(keys: int, values: int) -> str:
    """Returns why there are no chunks for heads of some keys and values; "" if there are.

    >>> without_chunks(64, 60)
    '64 keys and 60 values of a head: chunks take multiples of 16'
    >>> without_chunks(512, 64)
    '512 keys and 64 values of a head: chunks take up to 256 keys'
    """
    sizes = f"{keys} keys and {values} values of a head"
    if keys % TILE_ROWS or values % FIRST:
        return f"{sizes}: chunks take multiples of {TILE_ROWS}"
    return f"{sizes}: chunks take up to {MOST_KEYS} keys" if keys > MOST_KEYS else ""


def sizes_without_chunks(sizes: MatrixSizes) -> str:
    """Returns why a matrix of some sizes does not run in chunks, forward; "" if it does."""
    return without_chunks(sizes.keys, sizes.values)


@dataclass(frozen=True)
class TrainedChunks:
    """Teller of why the gradient of a matrix does not run in chunks on a device.

    shared: the bytes of shared memory that a block may have.

    >>> TrainedChunks(99 * 1024)(MatrixSizes(128, 128, 2, 1, has_decay=True))
    '128 keys and 128 values: gradients of decays take more than 101,376 bytes of shared memory'
    """

    shared: int

    def __call__(self, sizes: MatrixSizes) -> str:
        """Returns the reason; "" if it does. Keys and values change places in a gradient."""
        keys, values = sizes.keys, sizes.values
        if refused := without_chunks(keys, values):
            return refused
        if values > MOST_KEYS:
            return f"{keys} keys and {values} values of a head: gradients in chunks take up to {MOST_KEYS}"
        counts = sizes.reads, sizes.writes, keys, values
        form = decay_form(*counts, "float32", self.shared, sizes.by_key)
        if sizes.has_decay and form is None:
            most = f"{self.shared:,} bytes of shared memory"
            return f"{keys} keys and {values} values: gradients of decays take more than {most}"
        return ""
