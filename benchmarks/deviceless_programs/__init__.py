"""The programs that `deviceless.py` lowers, and what each is called with.

Weights and inputs come from seeds, so that both machines make the same ones. A small program
shows that results are right; a timed one is large enough for its kernels to matter.
"""

from . import forms, kernels, plugins, timed
from .program import PROGRAMS, Program, make

__all__ = ["PROGRAMS", "Program", "forms", "kernels", "make", "plugins", "timed"]
