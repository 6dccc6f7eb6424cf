"""The user's source line a node comes from."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import fx

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)')


@dataclass(frozen=True)
class SourceLine:
    """A place in the user's code: file, line number (from 1) and the line's text."""

    file: str
    line: int
    code: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.code}"


def source_line(node: fx.Node) -> SourceLine | None:
    """The innermost frame of the node's stack trace that is the user's code.

    Frames inside an installed package are passed over where a frame outside one exists. None
    where the node has no stack trace.
    """
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return None
    own = [frame for frame in frames if "site-packages" not in frame[0] and frame[0][0] != "<"]
    file, line, code = (own or frames)[-1]
    return SourceLine(file, int(line), code.strip())
