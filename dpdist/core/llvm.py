"""Code in LLVM's intermediate representation, for functions that numba compiles. Addresses are 64-bit integers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

I16, I32, I64 = map(ir.IntType, (16, 32, 64))


def emitted(emit: Any, result: Any = types.void) -> Any:
    """Return a function of int64 arguments for compiled code, whose code ``emit(build, *arguments)`` writes."""
    signature = inspect.signature(emit)

    def typed(_context: Any, *_arguments: Any) -> Any:
        def lower(context: Any, build: Any, _signature: Any, arguments: Any) -> Any:
            value = emit(build, *arguments)
            return context.get_dummy_value() if value is None else value

        return result(*[types.int64] * (len(signature.parameters) - 1)), lower

    typed.__signature__ = signature  # type: ignore[attr-defined]
    return intrinsic(typed)


def function(build: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Declare an instruction that LLVM has as a function."""
    return build.module.globals.get(name) or ir.Function(build.module, ir.FunctionType(result, arguments), name)


def load(build: Any, address: Any, kind: Any, align: int = 4) -> Any:
    """Emit a number or vector in memory."""
    return build.load(build.inttoptr(address, kind.as_pointer()), align=align)


def store(build: Any, value: Any, address: Any, align: int = 4) -> None:
    """Emit the storage of a number or vector."""
    build.store(value, build.inttoptr(address, value.type.as_pointer()), align=align)


def plus(build: Any, *terms: Any) -> Any:
    """Emit a sum."""
    return reduce(build.add, terms)


def same(kind: Any, value: Any) -> Any:
    """Return a constant vector with the same value in all lanes."""
    return ir.Constant(kind, [value] * kind.count)


def repeated(build: Any, kind: Any, value: Any) -> Any:
    """Emit a vector with the same value in all lanes."""
    first = build.insert_element(ir.Constant(kind, ir.Undefined), value, I32(0))
    return build.shuffle_vector(first, first, same(ir.VectorType(I32, kind.count), 0))


@contextmanager
def loop(
    build: Any, count: Any, first: Sequence[Any] = (), *, counts_first: bool = False
) -> Iterator[tuple[Any, list[Any], list[Any]]]:
    """Emit a loop of ``count`` iterations, at least one, whose body is the block.

    Yields the number of the iteration, the loop-carried values, and a list for those of the next iteration.
    """
    before, body, after = build.basic_block, build.append_basic_block(), build.append_basic_block()
    build.branch(body)
    build.position_at_end(body)
    number, carried, following = build.phi(I64), [build.phi(value.type) for value in first], list[Any]()
    one_more = build.add(number, I64(1)) if counts_first else None
    yield number, carried, following
    one_more = one_more or build.add(number, I64(1))
    for phi, begin, new in zip((number, *carried), (I64(0), *first), (one_more, *following), strict=True):
        phi.add_incoming(begin, before)
        phi.add_incoming(new, body)
    build.cbranch(build.icmp_signed("<", one_more, count), body, after)
    build.position_at_end(after)
