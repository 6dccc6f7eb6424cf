"""Arithmetic on sizes that may be symbolic, without a Python branch on what is not known.

An exported program keeps the branch it was traced with, so sizes are compared only through
`known`.
"""

from __future__ import annotations

from typing import TypeAlias

import torch

from ..torch_private import statically_known_true

Size: TypeAlias = "int | torch.SymInt"


def known(condition: bool | torch.SymBool) -> bool:
    """Whether a condition on sizes holds for every size the program admits; adds no guard."""
    return condition if isinstance(condition, bool) else statically_known_true(condition)


def at_least(size: Size, floor: Size) -> Size:
    """The larger of two sizes where one is known to be; else their sum, which bounds both."""
    if known(size >= floor):
        return size
    return floor if known(size <= floor) else size + floor


def at_most(size: Size, ceiling: Size) -> Size:
    """The smaller of two sizes where `ceiling` is known to be; else `size`."""
    return ceiling if known(ceiling <= size) else size
