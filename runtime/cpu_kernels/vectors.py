"""What numba cannot say itself: loops over vectors that stay in registers, built as LLVM code.

All addresses are integers in bytes; all strides and counts are in float32 elements.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numba.extending
import torch
from llvmlite import ir  # type: ignore[import-untyped]  # the package has no annotations
from numba.core import cgutils, types

Function = TypeVar("Function", bound=Callable[..., Any])

LANES = 8
"""float32 numbers in a vector; LLVM splits it where the machine's are narrower."""

_FLOAT, _INT32, _INT64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_ZEROS = ir.Constant(_VECTOR, [0.0] * LANES)

# Of two threads of which one is told to rest, every parallel loop takes milliseconds: a token ten times its time. So
# the pool is no larger than torch's, where none has begun and nobody has named its size.
if "NUMBA_NUM_THREADS" not in os.environ:
    numba.config.NUMBA_NUM_THREADS = min(numba.config.NUMBA_NUM_THREADS, max(1, torch.get_num_threads()))

# Sums may be reordered, but NaN and infinity keep their meaning: broken weights must be seen.
_FAST_MATH = {"reassoc", "contract", "nsz", "arcp"}


def compiled(*, parallel: bool = False, finite: bool = False) -> Callable[[Function], Function]:
    """Compile a function with numba when it is first called, and keep the machine code between processes.

    Args:
        parallel: its prange loops run in several threads.
        finite: its arguments are neither NaN nor infinite, or what becomes of those does not matter.
    """
    fast_math = _FAST_MATH | {"nnan", "ninf"} if finite else _FAST_MATH
    return cast(
        "Callable[[Function], Function]",
        numba.njit(cache=True, fastmath=fast_math, error_model="numpy", parallel=parallel),
    )


def _intrinsic(build: Callable[..., Any]) -> Callable[..., Any]:
    """Make compiled code's calls of this name (less the typing context) the code that `build` returns a builder of."""
    return cast("Callable[..., Any]", numba.extending.intrinsic(prefer_literal=True)(build))


def use_torch_threads() -> None:
    """Let this thread's kernels use as many threads as torch does."""
    numba.set_num_threads(max(1, min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)))


@_intrinsic
def address(typing_context: Any, array: Any) -> Any:
    """Where an array's first element lies."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, _INT64)

    return types.int64(array), build


@_intrinsic
def bits_as_float(typing_context: Any, bits: Any) -> Any:
    """The float32 with these 32 bits."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _FLOAT)

    return types.float32(types.int32), build


@_intrinsic
def columns_product(
    typing_context: Any,
    count: Any,
    vectors: Any,
    columns: Any,
    columns_stride: Any,
    weight: Any,
    weight_stride: Any,
    depth: Any,
    out: Any,
    out_stride: Any,
) -> Any:
    """out[n, :w] = sum over k of weight[n, k] * columns[k, :w], for n < count and w = vectors * LANES.

    count and vectors are literals: all sums stay in registers.
    """

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, columns, columns_stride, weight, weight_stride, depth, out, out_stride = args
        rows = [_at(builder, _floats(builder, weight), weight_stride, n) for n in range(count.literal_value)]

        def step(k: Any, sums: list[Any]) -> list[Any]:
            line = builder.gep(_floats(builder, columns), [builder.mul(k, columns_stride)])
            loaded = [_load(builder, line, i * LANES) for i in range(vectors.literal_value)]
            factors = [_splat(builder, builder.load(builder.gep(row, [k]))) for row in rows]
            products = [(factor, part) for factor in factors for part in loaded]
            return [_fma(builder, *pair, total) for pair, total in zip(products, sums, strict=True)]

        totals = iter(_loop(builder, depth, count.literal_value * vectors.literal_value, step))
        for n in range(count.literal_value):
            line = _at(builder, _floats(builder, out), out_stride, n)
            for i in range(vectors.literal_value):
                _store(builder, next(totals), line, i * LANES)
        return context.get_dummy_value()

    return types.void(count, vectors, *[types.int64] * 7), build


@_intrinsic
def four_scores(
    typing_context: Any,
    heads: Any,
    head_dim: Any,
    query: Any,
    first: Any,
    second: Any,
    third: Any,
    fourth: Any,
    out: Any,
    out_stride: Any,
) -> Any:
    """out[h, j] = query[h] . key j, for h < heads and the keys at four addresses.

    heads and head_dim are literals; query is [heads, head_dim].
    """

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        query, *keys, out, out_stride = args[2:]
        queries, lines = _floats(builder, query), [_floats(builder, key) for key in keys]
        sums = [[_ZEROS] * len(lines) for _ in range(heads.literal_value)]
        for i in range(0, head_dim.literal_value, LANES):
            loaded = [_load(builder, line, i) for line in lines]
            for h, totals in enumerate(sums):
                part = _load(builder, queries, h * head_dim.literal_value + i)
                sums[h] = [_fma(builder, part, key, total) for key, total in zip(loaded, totals, strict=True)]
        for h, totals in enumerate(sums):
            line = _at(builder, _floats(builder, out), out_stride, h)
            for j, total in enumerate(totals):
                builder.store(_sum(builder, total), builder.gep(line, [_int(j)]))
        return context.get_dummy_value()

    return types.void(heads, head_dim, *[types.int64] * 7), build


@_intrinsic
def weighted_values(
    typing_context: Any,
    heads: Any,
    vectors: Any,
    slots: Any,
    count: Any,
    values: Any,
    values_stride: Any,
    weights: Any,
    weights_stride: Any,
    out: Any,
    out_stride: Any,
) -> Any:
    """out[h, :w] = sum over t < count of weights[h, t] * values[slots[t], :w], for h < heads and w = vectors * LANES.

    heads and vectors are literals; slots are int32.
    """

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        slots, count, values, values_stride, weights, weights_stride, out, out_stride = args[2:]
        numbers = builder.inttoptr(slots, _INT32.as_pointer())
        rows = [_at(builder, _floats(builder, weights), weights_stride, h) for h in range(heads.literal_value)]

        def step(t: Any, sums: list[Any]) -> list[Any]:
            slot = builder.sext(builder.load(builder.gep(numbers, [t])), _INT64)
            line = builder.gep(_floats(builder, values), [builder.mul(slot, values_stride)])
            loaded = [_load(builder, line, i * LANES) for i in range(vectors.literal_value)]
            factors = [_splat(builder, builder.load(builder.gep(row, [t]))) for row in rows]
            products = [(factor, part) for factor in factors for part in loaded]
            return [_fma(builder, *pair, total) for pair, total in zip(products, sums, strict=True)]

        totals = iter(_loop(builder, count, heads.literal_value * vectors.literal_value, step))
        for h in range(heads.literal_value):
            line = _at(builder, _floats(builder, out), out_stride, h)
            for i in range(vectors.literal_value):
                _store(builder, next(totals), line, i * LANES)
        return context.get_dummy_value()

    return types.void(heads, vectors, *[types.int64] * 8), build


# -- pieces of LLVM code ----------------------------------------------------------------------------------------------


def _loop(builder: Any, count: Any, sums: int, step: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """Vectors that start at zero and are replaced by `step(index, vectors)`, for index 0 to count - 1 (count >= 1)."""
    before = builder.block
    body, after = builder.append_basic_block("body"), builder.append_basic_block("after")
    builder.branch(body)
    builder.position_at_end(body)
    index = builder.phi(_INT64)
    index.add_incoming(_int(0), before)
    totals = [builder.phi(_VECTOR) for _ in range(sums)]
    updated = step(index, totals)
    following = builder.add(index, _int(1))
    index.add_incoming(following, body)
    for total, update in zip(totals, updated, strict=True):
        total.add_incoming(_ZEROS, before)
        total.add_incoming(update, body)
    builder.cbranch(builder.icmp_signed("<", following, count), body, after)
    builder.position_at_end(after)
    return updated


def _int(value: int) -> Any:
    return ir.Constant(_INT64, value)


def _floats(builder: Any, place: Any) -> Any:
    return builder.inttoptr(place, _FLOAT.as_pointer())


def _at(builder: Any, pointer: Any, stride: Any, row: int) -> Any:
    return builder.gep(pointer, [builder.mul(stride, _int(row))])


def _load(builder: Any, pointer: Any, offset: int) -> Any:
    vector = builder.load(builder.bitcast(builder.gep(pointer, [_int(offset)]), _VECTOR.as_pointer()))
    vector.align = 4
    return vector


def _store(builder: Any, vector: Any, pointer: Any, offset: int) -> None:
    place = builder.bitcast(builder.gep(pointer, [_int(offset)]), _VECTOR.as_pointer())
    builder.store(vector, place).align = 4


def _splat(builder: Any, number: Any) -> Any:
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    lone = builder.insert_element(undefined, number, ir.Constant(_INT32, 0))
    return builder.shuffle_vector(lone, undefined, ir.Constant(ir.VectorType(_INT32, LANES), [0] * LANES))


def _fma(builder: Any, left: Any, right: Any, total: Any) -> Any:
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
    return builder.call(function, [left, right, total])


def _sum(builder: Any, vector: Any) -> Any:
    """Sum of a vector's numbers, by halves."""
    width = LANES
    while width > 1:
        width //= 2
        undefined = ir.Constant(vector.type, ir.Undefined)
        halves = (ir.Constant(ir.VectorType(_INT32, width), list(range(start, start + width))) for start in (0, width))
        low, high = (builder.shuffle_vector(vector, undefined, half) for half in halves)
        vector = builder.fadd(low, high)
    return builder.extract_element(vector, ir.Constant(_INT32, 0))
