"""What goes wrong when lowering without a GPU, as one error type."""

from __future__ import annotations

from graftwork.plugins.errors import GraftworkError

__all__ = ["DevicelessError"]


class DevicelessError(GraftworkError):
    """This machine, this torch release or this request cannot be lowered without a GPU."""
