"""One thread at a time traces, rewrites or compiles.

torch.export, FX, Inductor and ExecuTorch keep state per process (the metadata that nodes being
traced inherit, configuration, caches), which threads at work at once would corrupt
(pytorch/pytorch#168042).
"""

from __future__ import annotations

import threading

TORCH_TURN = threading.RLock()
