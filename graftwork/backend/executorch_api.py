"""Everything that touches ExecuTorch's Python packages (checked on 1.5.1).

Imported late: ExecuTorch takes seconds to import, and a machine that only rewrites programs or
uses AOTInductor needs none of it.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from graftwork.plugins.errors import GraftworkError, InputError, NotLowerableError


def lower_to_xnnpack(programs: Mapping[str, ExportedProgram]) -> Any:
    """An edge program manager with XNNPACK delegates; non-core operators are left for the audit.

    Raises:
        NotLowerableError: ExecuTorch itself refused the program.
    """
    exir = _exir()
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    return _guarded(
        "lowering to the edge dialect",
        lambda: exir.to_edge_transform_and_lower(
            dict(programs),
            partitioner=[XnnpackPartitioner()],
            compile_config=exir.EdgeCompileConfig(_check_ir_validity=False),
        ),
    )


def lower_with(programs: Mapping[str, ExportedProgram], partitioners: Mapping[str, Any]) -> Any:
    """An edge program manager whose delegates the given partitioners, by method, cut out.

    Raises:
        NotLowerableError: ExecuTorch itself refused the program.
    """
    exir = _exir()
    return _guarded(
        "lowering to the edge dialect",
        lambda: exir.to_edge_transform_and_lower(
            {method: _with_own_constants(program) for method, program in programs.items()},
            partitioner=dict(partitioners),
            compile_config=exir.EdgeCompileConfig(_check_ir_validity=False),
        ),
    )


def _with_own_constants(program: ExportedProgram) -> ExportedProgram:
    """The same program over dictionaries of its own: lowering takes constants out of them."""
    own = copy.copy(program)
    own._state_dict = dict(program.state_dict)
    own._constants = dict(program.constants)
    return own


def emit(edge: Any, named_data: Mapping[str, bytes]) -> Any:
    """The emitted program and its data files, with named data embedded beside the program."""
    for name, data in named_data.items():
        edge._named_data_store.add_named_data(name, data)
    return _guarded("memory planning and emission", edge.to_executorch)


def serialize(edge: Any, named_data: Mapping[str, bytes]) -> bytes:
    """The .pte bytes of an edge program manager, with named data embedded beside the program."""
    return bytes(emit(edge, named_data).buffer)


def out_variant_name(target: Any) -> str | None:
    """The registry name of an edge operator's out variant, such as `aten::add.out`.

    None for what needs no kernel (delegate calls, symbolic arithmetic); empty where the operator
    has no out variant.
    """
    from executorch.exir.dialects.edge._ops import EdgeOpOverload

    if not isinstance(target, EdgeOpOverload):
        return None
    try:
        schema = target.to_out_variant()._schema
    except RuntimeError:
        return ""
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


@functools.cache
def portable_kernels() -> frozenset[str]:
    """Names of the kernels that executorch's own Python runtime registers."""
    return frozenset(_runtime().operator_registry.operator_names)


def load_methods(
    path: Path, data: Path | None = None
) -> Callable[[str], Callable[[Sequence[Any]], list[Any]]]:
    """A .pte, with its .ptd, in executorch's Python runtime; gives each method by name.

    Raises:
        InputError: the file cannot be loaded; likewise when a method is asked for.
    """
    try:
        program = _runtime().load_program(str(path), data_path=data)
    except (RuntimeError, OSError) as error:
        raise InputError(f"{path} cannot be loaded: {error}") from error

    def method_of(name: str) -> Callable[[Sequence[Any]], list[Any]]:
        if name not in program.method_names:
            names = ", ".join(sorted(program.method_names))
            raise InputError(f"{path} has no method '{name}'; it has {names}")
        try:
            loaded = program.load_method(name)
        except RuntimeError as error:
            raise InputError(f"{path}: method '{name}' cannot be loaded: {error}") from error
        return lambda inputs: list(loaded.execute(tuple(inputs)))

    return method_of


def _runtime() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from executorch.runtime import Runtime
        except ImportError as error:
            raise InputError(
                f"ExecuTorch cannot be imported ({error}); pip install executorch==1.5.1"
            ) from error
    return Runtime.get()


def _exir() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from executorch import exir
        except ImportError as error:
            raise InputError(
                f"ExecuTorch cannot be imported ({error}); pip install executorch==1.5.1"
            ) from error
    return exir


def _guarded(stage: str, work: Any) -> Any:
    """Run ExecuTorch's part; whatever it raises becomes one error that names the stage."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return work()
        except GraftworkError:
            raise
        except Exception as error:
            message = str(error).strip().splitlines() or [type(error).__name__]
            raise NotLowerableError(
                f"ExecuTorch refused the program in {stage}: {type(error).__name__}: {message[0]}"
            ) from error
