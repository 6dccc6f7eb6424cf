"""Verified rewrites and CUDA kernels, as plugins, for lowering PyTorch models.

`lower` takes a model to an artifact and `load` an artifact to a callable; `rewrite` fits into an
ExecuTorch script of your own.
Everything is imported when first used, so that `import graftwork` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graftwork.lowering import Lowered, lower, rewrite
    from graftwork.plugins.exportable_checks import exportable_checks
    from graftwork.plugins.verification import verify
    from graftwork.running.loading import load

__version__ = "0.1.0"

__all__ = ["Lowered", "exportable_checks", "load", "lower", "rewrite", "verify"]

_HOMES = {
    "Lowered": "graftwork.lowering",
    "exportable_checks": "graftwork.plugins.exportable_checks",
    "load": "graftwork.running.loading",
    "lower": "graftwork.lowering",
    "rewrite": "graftwork.lowering",
    "verify": "graftwork.plugins.verification",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'graftwork' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
