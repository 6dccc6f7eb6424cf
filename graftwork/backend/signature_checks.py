"""What a program's signature must say before it is built: a layout, and sizes that end."""

from __future__ import annotations

from graftwork.plugins.errors import InputError

from .signature import Input, Signature, Size

__all__ = ["refuse_unbounded_sizes", "refuse_unknown_layouts"]


def refuse_unknown_layouts(method: str, signature: Signature) -> None:
    """Refuse programs exported for a layout that no other input could be copied into.

    Raises:
        InputError: names the input.
    """
    for item in signature.inputs or ():
        if isinstance(item, Input) and item.example and (item.order or item.strides) is None:
            raise InputError(
                f"method {method}, input {item.name}: the program was exported for an example "
                f"with gaps or elements that share memory; export it with {item.name}.contiguous()"
            )


def refuse_unbounded_sizes(method: str, signature: Signature) -> None:
    """Refuse sizes without an upper bound, for a runtime that plans memory for the largest.

    ExecuTorch would plan for the example's, and refuse any larger one.

    Raises:
        InputError: names the input and the dim.
    """
    for item in signature.inputs or ():
        for dim, size in enumerate(item.shape if isinstance(item, Input) else ()):
            if isinstance(size, Size) and size.high is None:
                raise InputError(
                    f"method {method}, input {item.name}: dim {dim} has no upper bound, and "
                    "ExecuTorch plans memory for the largest; export it with Dim(..., max=...)"
                )
