"""Arithmetic on sizes that may be symbolic, without a Python branch on what is not known.

An exported program keeps the branch it was traced with, so a size is compared only through
`known`, and a maximum or minimum is an expression of its own.
"""

from __future__ import annotations

from typing import TypeAlias

import torch

from ..torch_private import statically_known_true

Size: TypeAlias = "int | torch.SymInt"


def known(condition: bool | torch.SymBool) -> bool:
    """Whether a condition on sizes holds for every size the program admits; adds no guard."""
    return statically_known_true(condition)


def larger(one: Size, other: Size) -> Size:
    """The larger of two sizes."""
    return torch.sym_max(one, other)


def smaller(one: Size, other: Size) -> Size:
    """The smaller of two sizes."""
    return torch.sym_min(one, other)
