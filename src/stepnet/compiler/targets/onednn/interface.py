"""The C interface of oneDNN 3, as far as recurrences need it: constants, structs and functions, in tables.

The numbers are those of include/oneapi/dnnl/dnnl_types.h, which are the same in versions 3.2 to 3.7. The
checks in `library.py` compare them with what the loaded library answers.
"""

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint, c_void_p

MAJOR = 3
MOST_DIMS = 12
CPU = 1
DEFAULT_STREAM = 1  # runs primitives in order
USER_SCRATCHPAD = 1
OVERWRITE_WEIGHTS = 1  # a backward pass sets the gradients of weights, and does not add to them

STATUSES = (
    "success",
    "out_of_memory",
    "invalid_arguments",
    "unimplemented",
    "last_impl_reached",
    "runtime_error",
    "not_required",
    "invalid_graph",
    "invalid_graph_op",
    "invalid_shape",
    "invalid_data_type",
)
UNIMPLEMENTED = STATUSES.index("unimplemented")

RUNTIMES = {0: "none", 1: "sequential", 2: "OpenMP", 4: "TBB", 8: "a thread pool", 256: "OpenCL", 512: "SYCL"}
USABLE_RUNTIMES = (1, 2, 4)

DTYPES = {"float16": 1, "bfloat16": 2, "float32": 3, "int32": 4, "int8": 5, "uint8": 6}
TAGS = {"any": 1, "abc": 4, "abcd": 5, "abcde": 6}
DIRECTIONS = {"left2right": 1, "right2left": 2}
ACTIVATIONS = {"relu": 0x20, "tanh": 0x21, "sigmoid": 0x29}
INFERENCE, TRAINING, BACKWARD = 96, 64, 128

# The numbers of the arguments of primitives; that of a gradient is larger by DIFF.
ARGUMENTS = {
    "src_layer": 1,
    "src_iter": 2,
    "src_iter_c": 3,
    "attention": 4,
    "dst_layer": 17,
    "dst_iter": 18,
    "dst_iter_c": 19,
    "weights_layer": 33,
    "weights_iter": 34,
    "weights_peephole": 35,
    "weights_projection": 36,
    "bias": 41,
    "workspace": 64,
    "scratchpad": 80,
}
DIFF = 128
FROM, TO = 1, 17  # numbers of the arguments of a reorder

QUERY_PROPAGATION, QUERY_CELL, QUERY_DIRECTION = 11, 28, 29
QUERY_WORKSPACE, QUERY_SCRATCHPAD, QUERY_ARGUMENT = 135, 136, 255
QUERY_NDIMS, QUERY_DIMS, QUERY_DTYPE = 256, 257, 258

# Bits of the instruction sets that the library uses.
ISA_VNNI, ISA_BF16, ISA_F16 = 0x40 | 0x08, 0x80, 0x100


class Version(ctypes.Structure):
    """oneDNN's C struct dnnl_version_t, as far as all versions have it."""

    _fields_ = (
        ("major", c_int),
        ("minor", c_int),
        ("patch", c_int),
        ("commit", c_char_p),
        ("cpu_runtime", c_uint),
        ("gpu_runtime", c_uint),
    )


class ExecutionArgument(ctypes.Structure):
    """oneDNN's C struct dnnl_exec_arg_t: an argument of a primitive, by its number."""

    _fields_ = (("number", c_int), ("memory", c_void_p))


Dims = c_int64 * MOST_DIMS

OBJECT = c_void_p
OUT = POINTER(c_void_p)


def descriptors(count: int) -> tuple[type[c_void_p], ...]:
    """Returns the C argument types of `count` memory descriptors, to declare a function of oneDNN."""
    return (OBJECT,) * count


def recurrence(count: int) -> dict[str, tuple[object, ...]]:
    """Returns the C argument types of oneDNN's functions that describe a recurrence's "forward" and
    "backward" pass. count: the number of its memory arguments; "backward" takes the gradient of each as well.
    """
    begin = (OUT, OBJECT, c_int, c_int)  # ..., engine, kind of propagation, direction
    return {
        "forward": (*begin, *descriptors(count), c_uint, OBJECT),
        "backward": (*begin, *descriptors(2 * count), c_uint, OBJECT, OBJECT),
    }


def vanilla(count: int) -> dict[str, tuple[object, ...]]:
    """Returns the C argument types of oneDNN's functions that describe the "forward" and "backward" pass of a
    simple recurrence. They also take an activation and two parameters of it.

    count: the number of memory arguments; "backward" takes the gradient of each as well.
    """
    begin = (OUT, OBJECT, c_int, c_int, c_int)
    return {
        "forward": (*begin, *descriptors(count), c_uint, c_float, c_float, OBJECT),
        "backward": (*begin, *descriptors(2 * count), c_uint, c_float, c_float, OBJECT, OBJECT),
    }


KINDS = {
    "vanilla_rnn": vanilla(7),
    "lstm": recurrence(11),
    "gru": recurrence(7),
    "lbr_gru": recurrence(7),
    "augru": recurrence(8),
    "lbr_augru": recurrence(8),
}
"""The argument types of the functions of each kind of recurrence."""

# Each function with the types of its arguments. All return a status, unless RETURNS says otherwise.
FUNCTIONS: dict[str, tuple[object, ...]] = {
    "dnnl_version": (),
    "dnnl_get_effective_cpu_isa": (),
    "dnnl_engine_create": (OUT, c_int, c_size_t),
    "dnnl_engine_destroy": (OBJECT,),
    "dnnl_stream_create": (OUT, OBJECT, c_uint),
    "dnnl_stream_destroy": (OBJECT,),
    "dnnl_stream_wait": (OBJECT,),
    "dnnl_memory_desc_create_with_tag": (OUT, c_int, POINTER(c_int64), c_int, c_int),
    "dnnl_memory_desc_clone": (OUT, OBJECT),
    "dnnl_memory_desc_destroy": (OBJECT,),
    "dnnl_memory_desc_equal": (OBJECT, OBJECT),
    "dnnl_memory_desc_get_size": (OBJECT,),
    "dnnl_memory_desc_query": (OBJECT, c_int, c_void_p),
    "dnnl_memory_create": (OUT, OBJECT, OBJECT, c_void_p),
    "dnnl_memory_set_data_handle": (OBJECT, c_void_p),
    "dnnl_memory_destroy": (OBJECT,),
    "dnnl_primitive_attr_create": (OUT,),
    "dnnl_primitive_attr_destroy": (OBJECT,),
    "dnnl_primitive_attr_set_scratchpad_mode": (OBJECT, c_int),
    "dnnl_primitive_attr_set_rnn_data_qparams": (OBJECT, c_float, c_float),
    "dnnl_primitive_attr_set_rnn_weights_qparams": (OBJECT, c_int64, c_int, POINTER(c_float)),
    "dnnl_primitive_desc_query": (OBJECT, c_int, c_int, c_void_p),
    "dnnl_primitive_desc_query_md": (OBJECT, c_int, c_int),
    "dnnl_primitive_desc_destroy": (OBJECT,),
    "dnnl_primitive_create": (OUT, OBJECT),
    "dnnl_primitive_execute": (OBJECT, OBJECT, c_int, POINTER(ExecutionArgument)),
    "dnnl_primitive_destroy": (OBJECT,),
    "dnnl_reorder_primitive_desc_create": (OUT, OBJECT, OBJECT, OBJECT, OBJECT, OBJECT),
    **{
        f"dnnl_{kind}_{way}_primitive_desc_create": types
        for kind, ways in KINDS.items()
        for way, types in ways.items()
    },
}
RETURNS: dict[str, type] = {
    "dnnl_version": POINTER(Version),
    "dnnl_memory_desc_get_size": c_size_t,
    "dnnl_primitive_desc_query_md": c_void_p,
}
