"""Kernels in Gluon, the language under Triton's, where a kernel says itself who waits for whom.

Inductor knows kernels in Triton alone. So a Gluon kernel comes with a stand-in: a Triton kernel
with the same parameters that reads and writes the same tensors, whose docstring ends in
`Gluon: module:name`. Programs record launches of the stand-in, from which Inductor sees what is
written; while a program is compiled, the patch `gluon-kernels` puts the Gluon kernel in its
place. On a GPU, :func:`~graftwork.plugins.toolkit.kernels.launch` runs the Gluon kernel at once.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

import triton

Kernel = Any  # a function under @triton.jit or @gluon.jit; Triton ships no types

# Gluon is experimental: its names and rules move between Triton's releases.
CHECKED_RELEASES = ("3.6", "3.7")

_NAMED = re.compile(r"Gluon: ([\w.]+):(\w+)")


def available() -> bool:
    """Whether this Triton's Gluon is one that our kernels were checked with."""
    return ".".join(triton.__version__.split(".")[:2]) in CHECKED_RELEASES


def kernel_behind(kernel: Kernel) -> Kernel | None:
    """The Gluon kernel that `kernel` stands in for, or None for any other kernel."""
    named = _NAMED.search(kernel.fn.__doc__ or "")
    return None if named is None else getattr(importlib.import_module(named[1]), named[2])


def is_named_in(source: str) -> bool:
    """Whether the source of a kernel is that of a stand-in."""
    return _NAMED.search(source) is not None
