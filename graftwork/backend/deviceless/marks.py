"""Which storages stand for memory of a GPU that is not there."""

from __future__ import annotations

import torch

__all__ = ["CUDA", "Marks"]

CUDA = torch.device("cuda", 0)


class Marks:
    """Which storages stand for memory of another device. Marked storages are kept alive."""

    def __init__(self) -> None:
        self._marks: dict[int, tuple[torch.UntypedStorage, torch.device]] = {}

    def set(self, tensor: torch.Tensor, device: torch.device = CUDA) -> torch.Tensor:
        """Mark the storage of `tensor`, and return the tensor."""
        storage = tensor.untyped_storage()
        self._marks[storage._cdata] = (storage, device)
        return tensor

    def get(self, tensor: object) -> torch.device | None:
        """The device that `tensor` stands for, or None where it is not marked."""
        if not self._marks or not isinstance(tensor, torch.Tensor):
            return None
        try:
            mark = self._marks.get(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):
            return None  # no storage: sparse and wrapper tensors
        return None if mark is None else mark[1]

    def clear(self) -> None:
        """Forget every mark."""
        self._marks.clear()
