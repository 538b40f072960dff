"""cuDNN's recurrences by an algorithm of one's choice, through its C interface: PyTorch chooses one itself.

The library is the one that PyTorch has loaded, and memory on the GPU is PyTorch's.
"""

import ctypes
from typing import Any

import numpy as np

from .torch import device_of, steps_of, waited
from .worker import Array, Missing, Prepared, Refused, Work, imported

DEVICES = ("cuda",)
LIBRARY = "libcudnn.so.9"
ALGORITHMS = {"standard": 0, "persistent": 1, "dynamic": 2, "small": 3}
"""cuDNN's numbers: kernels for every step; and those that stay, in code of fixed widths, in code that is made
for a width, and for small widths.
"""
CELLS = {"lstm": 2, "gru": 3}
FLOAT, BOTH_BIASES, FMA = 0, 2, 3
"""float32, a bias of inputs and one of the memory, and products in float32 that are no TF32."""
INFERENCE = 0


def loaded() -> Any:
    """Loads the library; raises `OSError` if it is not there."""
    library = ctypes.CDLL(LIBRARY)
    library.cudnnGetErrorString.restype = ctypes.c_char_p
    return library


LOAD = loaded
"""The function that loads the library."""


class Cudnn:
    """The library: calls its functions by name, and makes its descriptors."""

    def __init__(self, library: Any) -> None:
        """Takes the loaded library."""
        self.library = library
        self.handle = self.made("cudnnCreate")

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function; raises `Refused` if cuDNN does not support what is asked, with its words."""
        status = getattr(self.library, name)(*arguments)
        if status:
            words = self.library.cudnnGetErrorString(status)
            raise Refused(f"cuDNN says: {words.decode()} ({name})")

    def made(self, name: str) -> ctypes.c_void_p:
        """Returns the handle or descriptor that a function makes."""
        found = ctypes.c_void_p()
        self.call(name, ctypes.byref(found))
        return found


def start(threads: int, options: dict[str, Any]) -> dict[str, str]:
    """Returns the version of cuDNN; raises `Missing` without a GPU or cuDNN."""
    torch = imported("torch", "pip install stepnet[torch]")
    if not torch.cuda.is_available():
        raise Missing("PyTorch finds no GPU here")
    try:
        LOAD()
    except OSError as error:
        raise Missing(f"{error}; PyTorch's wheels for CUDA bring it") from error
    torch.set_num_threads(threads)
    return {"cudnn": str(torch.backends.cudnn.version())}


def prepare(work: Work) -> Prepared:
    """Makes the case by the algorithm that the options name: returns the timed call."""
    torch = imported("torch", "")
    work.needs(CELLS, "cuDNN")
    if not work.is_one or work.ragged or work.dtype != "float32":
        raise Refused("it is asked for one layer in one direction, on sequences of one length, in float32")
    there = device_of(torch, work)
    cudnn = Cudnn(LOAD())
    x = steps_of(torch, work, "values", packed=False).contiguous()
    y = torch.empty(*x.shape[:2], work.hidden, device=there)
    rnn = descriptor(cudnn, work)
    weights = weight_space(torch, cudnn, rnn, work, there)
    x_of, y_of = (data_descriptor(cudnn, work, each.shape[-1]) for each in (x, y))
    h_of = tensor_descriptor(cudnn, (1, work.batch, work.hidden))
    sizes = ctypes.c_size_t(), ctypes.c_size_t()
    cudnn.call("cudnnGetRNNTempSpaceSizes", cudnn.handle, rnn, INFERENCE, x_of, *map(ctypes.byref, sizes))
    room = torch.empty(max(1, sizes[0].value), dtype=torch.uint8, device=there)
    lengths = torch.from_numpy(work.lengths.astype("i4")).to(there)
    state = h_of, None, None
    arguments = [
        *(cudnn.handle, rnn, INFERENCE, address(lengths), x_of, address(x), y_of, address(y), *state, *state),
        *(ctypes.c_size_t(weights.nbytes), address(weights), ctypes.c_size_t(room.nbytes), address(room)),
        *(ctypes.c_size_t(0), None),
    ]

    tensors = x, y, weights, room, lengths  # kept as long as the call, which has their addresses alone

    def run() -> tuple[Any, ...]:
        """Runs all steps, with the products over inputs, to be timed."""
        cudnn.call("cudnnRNNForward", *arguments)
        return tensors

    def outputs(result: tuple[Any, ...]) -> Array:
        """Converts outputs [time, batch, hidden] to an array with sequences end to end."""
        return work.end_to_end(result[1].cpu().numpy(), time_major=True)

    return Prepared(waited(torch, work, run), outputs)


def address(tensor: Any) -> ctypes.c_void_p:
    """Returns the address of a tensor."""
    return ctypes.c_void_p(tensor.data_ptr())


def descriptor(cudnn: Cudnn, work: Work) -> ctypes.c_void_p:
    """Makes the descriptor of a recurrence."""
    dropout = cudnn.made("cudnnCreateDropoutDescriptor")
    none = ctypes.c_size_t(0), ctypes.c_ulonglong(0)
    cudnn.call("cudnnSetDropoutDescriptor", dropout, cudnn.handle, ctypes.c_float(0), None, *none)
    rnn = cudnn.made("cudnnCreateRNNDescriptor")
    algorithm = ALGORITHMS[work.options["algorithm"]]
    kinds = algorithm, CELLS[work.cell], BOTH_BIASES, 0, 0, FLOAT, FLOAT, FMA
    sizes = work.inputs, work.hidden, work.hidden, 1
    cudnn.call("cudnnSetRNNDescriptor_v8", rnn, *kinds, *sizes, dropout, 0)
    if work.options["algorithm"] == "dynamic":
        cudnn.call("cudnnBuildRNNDynamic", cudnn.handle, rnn, work.batch)
    return rnn


def data_descriptor(cudnn: Cudnn, work: Work, features: int) -> ctypes.c_void_p:
    """Makes the descriptor of sequences [time, batch, features]."""
    made, fill = cudnn.made("cudnnCreateRNNDataDescriptor"), ctypes.c_float(0)
    lengths = (ctypes.c_int * work.batch)(*map(int, work.lengths))
    sizes = work.time, work.batch, features
    cudnn.call("cudnnSetRNNDataDescriptor", made, FLOAT, 0, *sizes, lengths, ctypes.byref(fill))
    return made


def tensor_descriptor(cudnn: Cudnn, shape: tuple[int, ...]) -> ctypes.c_void_p:
    """Makes the descriptor of a contiguous tensor."""
    made, count = cudnn.made("cudnnCreateTensorDescriptor"), len(shape)
    strides = [int(np.prod(shape[axis + 1 :])) for axis in range(count)]
    arrays = [(ctypes.c_int * count)(*numbers) for numbers in (shape, strides)]
    cudnn.call("cudnnSetTensorNdDescriptor", made, FLOAT, count, *arrays)
    return made


def weight_space(torch: Any, cudnn: Cudnn, rnn: ctypes.c_void_p, work: Work, there: str) -> Any:
    """Returns a tensor with the weights where cuDNN wants them: for each gate the matrix of inputs, then that
    of the memory, [hidden, ...] each, with a bias beside it.
    """
    size = ctypes.c_size_t()
    cudnn.call("cudnnGetRNNWeightSpaceSize", cudnn.handle, rnn, ctypes.byref(size))
    space = torch.zeros(size.value, dtype=torch.uint8, device=there)
    p, H = work.weights, work.hidden
    gates = p["R"].shape[1] // H
    matrices = [array[:, H * n : H * n + H].T for array in (p["W"], p["R"]) for n in range(gates)]
    biases = [array[H * n : H * n + H] for array in (p["b"], p.get("d", 0 * p["b"])) for n in range(gates)]
    of = [tensor_descriptor(cudnn, (1, 1, 1)) for _ in range(2)]
    for number, arrays in enumerate(zip(matrices, biases, strict=True)):
        places = ctypes.c_void_p(), ctypes.c_void_p()
        pairs = [each for one, place in zip(of, places, strict=True) for each in (one, ctypes.byref(place))]
        whole = ctypes.c_size_t(space.nbytes), address(space)
        cudnn.call("cudnnGetRNNWeightParams", cudnn.handle, rnn, 0, *whole, number, *pairs)
        for array, place in zip(arrays, places, strict=True):
            first = (place.value or 0) - space.data_ptr()
            bytes_of = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            space[first : first + bytes_of.size] = torch.from_numpy(bytes_of).to(there)
    return space
