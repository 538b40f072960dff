"""The gradient of a net, as a net.

    net(x, W):                            vjp(net)(x, W, dy):
      y = tanh(x @ W)        ->             y = tanh(x @ W)
      return y                              da = dy * (1 - y * y)
                                            return y, da @ W.T, contract(x, da)

It is a net like any other: passes, engines and gradients take it.
"""

from collections.abc import Sequence
from functools import partial

from stepnet.compiler.grad.constants import constants_outside
from stepnet.compiler.grad.forward import Forward
from stepnet.compiler.grad.handover import handed_over
from stepnet.compiler.grad.matrix_adjoint import transpose_cores, with_cores
from stepnet.compiler.grad.stored_values import with_stored_values
from stepnet.compiler.grad.sweep import Sweep
from stepnet.compiler.grad.value import Value
from stepnet.compiler.net.ir import Builder, Net
from stepnet.compiler.net.types import Type
from stepnet.compiler.plan.load import FitsChunks
from stepnet.compiler.plan.passes.chain import chain
from stepnet.compiler.plan.passes.fold import fold
from stepnet.compiler.plan.passes.narrow import any_low
from stepnet.compiler.plan.passes.prune import prune
from stepnet.compiler.plan.passes.split import split
from stepnet.compiler.plan.passes.split_concat_matmul import split_concat_matmul
from stepnet.compiler.values.collector import paused_collector
from stepnet.errors import RefusedError


def vjp(
    net: Net, argnums: Sequence[int] | None = None, is_stored: bool = False, chunks: FitsChunks | None = None
) -> Net:
    """Makes the gradient net: it computes a net's results, and its inputs' cotangents from the results'.

    Its inputs are the inputs of the net, then one for each floating-point result: the cotangent of the
    result. Its results are those of the net, then the cotangents of the wanted inputs.

    argnums: positions of the inputs whose cotangents are computed; by default all floating-point ones.
    is_stored: whether cotangents of results in half precision are in it too; by default they are float32.
    chunks: tells which recurrences whose memory is a matrix have gradients that run in chunks of steps; None
        for none.
    Raises `RefusedError` for a recurrence in int8.
    The gradient of a recurrence in bfloat16 is in bfloat16 too. It is that of the function without rounding,
    at the rounded values, and each of its products and contracts rounds both sides. The cotangents of
    parameters are float32.

    >>> from stepnet.compiler.net.types import CONST, STEPS, Type
    >>> builder = Builder()
    >>> x = builder.input(Type(STEPS, (2,), "float32"), "x")
    >>> W = builder.input(Type(CONST, (2, 3), "float32"), "W")
    >>> print(vjp(builder.net([builder.add("matmul", x, W)])))
    net(
        x: rows/steps f32[2],
        W: const f32[2, 3],
        d_0: rows/steps f32[3],
    ):
      %3 = matmul x W : rows/steps f32[3]
      %4 = transpose W order=(1,0) : const f32[3, 2]
      %5 = matmul d_0 %4 : rows/steps f32[2]
      %6 = contract x d_0 : const f32[2, 3]
      return %3, %5, %6
    """
    if any_low(net, ("int8",)):
        raise RefusedError(
            "a recurrence in int8 has no gradient: train the one that `quantize` was given, in float32 or "
            "bfloat16, and quantize it again"
        )
    with paused_collector():
        return joint_net(net, argnums, is_stored, chunks)


def joint_net(
    net: Net, argnums: Sequence[int] | None, is_stored: bool = False, chunks: FitsChunks | None = None
) -> Net:
    """Makes the gradient net that `vjp` documents, without its checks: the results of a net, and cotangents
    of inputs from those of the results.

    argnums: positions of the inputs whose cotangents are results; None for all floating-point inputs.
    is_stored, chunks: as of `vjp`.
    """
    # Consecutive products are merged here. Otherwise a half that does not save the intermediate product would
    # merge them later, and round differently from a half that saves it.
    for rewrite in (prune, fold, split_concat_matmul, chain, constants_outside):
        net = rewrite(net)
    net, cores = (net, {}) if chunks is None else with_cores(net, chunks)
    types = [net.type_of(number) for number in net.inputs]
    if argnums is None:
        argnums = [position for position, type_ in enumerate(types) if type_.is_float]
    builder = Builder()
    copy_of = {n: builder.input(net.type_of(n), net.nodes[n].name) for n in net.inputs}
    seeds = {
        result: Value(builder, seed_of(builder, net.type_of(number), f"d_{result}", is_stored))
        for result, number in enumerate(net.results)
        if net.type_of(number).is_float
    }
    sweep = Sweep(builder, net, Forward(copy_of).copy(builder, net), partial(transpose_cores, cores))
    for result, seed in seeds.items():
        sweep.add(net.results[result], seed)
    sweep.run()
    cotangents = [sweep.of_input(net.inputs[position]).number for position in argnums]
    joint = builder.net([*(sweep.forward.copy_of[number] for number in net.results), *cotangents])
    for rewrite in (prune, split, handed_over, prune, fold):
        joint = rewrite(joint)
    return with_stored_values(joint, len(net.inputs))


def seed_of(builder: Builder, type_: Type, name: str, is_stored: bool) -> int:
    """Adds an input for the cotangent of a result; returns the number of the cotangent as it is computed.
    type_: of the result. name: of the input. is_stored: whether the input has the result's own dtype.
    """
    computed = type_.computed
    if not is_stored or computed == type_:
        return builder.input(computed, name)
    return builder.add("cast", builder.input(type_, name), dtype=computed.dtype)
