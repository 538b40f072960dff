"""The names of the engines that run on a GPU."""

from stepnet.compiler.targets.cuda.options import CudaPrecision, checked_options, engine_name
from stepnet.compiler.values.arguments import checked_integer


def engine(device: int = 0, precision: CudaPrecision = "float32", batch_invariant: bool = False) -> str:
    """Returns the name of an engine that runs on a GPU, for the argument `engine=` of all functions.

    Args:
        device: The number of the GPU, from 0 on.
        precision: The numbers that float32 is multiplied as: "float32", or "tf32" or "bfloat16", which are
            faster and round them to 10 bits or to 7. Other dtypes, such as float64, are multiplied as they
            are.
        batch_invariant: Whether a sequence has the same bits in every batch, whatever is chosen for speed.

    Returns:
        A name such as "cuda:1:tf32".

    Raises:
        InputError: For a number below 0, another precision, or what is not True or False.

    >>> import stepnet.cuda
    >>> stepnet.cuda.engine(1, precision="tf32", batch_invariant=True)
    'cuda:1:tf32:batch-invariant'
    """
    number = checked_integer(device, "device is the number of a GPU, a whole number from 0 on")
    return engine_name("cuda", number, checked_options(precision, batch_invariant))
