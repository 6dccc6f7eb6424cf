"""An AOTInductor package that torch's loader would crash on is refused."""

import subprocess
import zipfile

import pytest

from graftwork.backend.targets import find_target
from graftwork.backend.targets.aoti import refuse_own_runtime
from graftwork.plugins import torch_private
from graftwork.plugins.errors import InputError, NotLowerableError

SOURCE = """
#include <stdexcept>
extern "C" int face(int x) { if (x) throw std::runtime_error("x"); return x; }
"""


def package(folder, *flags):
    (folder / "l.cpp").write_text(SOURCE)
    library = folder / "l.so"
    command = ["g++", "-shared", "-fPIC", str(folder / "l.cpp"), "-o", str(library), *flags]
    subprocess.run(command, check=True)
    path = folder / "program.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(library, "program/data/aotinductor/model/l.so")
    return path


def test_a_library_with_a_cpp_runtime_of_its_own_is_refused(tmp_path, monkeypatch):
    """A g++ that links it statically, as some containers set CXX to: `x + 1` crashed there."""
    monkeypatch.setenv("CXX", "/somewhere/g++")
    with pytest.raises(NotLowerableError, match="/somewhere/g.. links a C.. runtime"):
        refuse_own_runtime(package(tmp_path, "-static-libstdc++"))


def test_a_library_that_shares_it_is_taken(tmp_path):
    refuse_own_runtime(package(tmp_path))


def test_a_compiler_that_cannot_be_run_is_named():
    """Patches of the compile failed on it, and were blamed."""
    # By the configuration's own patch: what is deleted and set again there stays hidden.
    missing = torch_private.inductor_config().patch("cpp.cxx", (None, "/nope/g++"))
    with (
        missing,
        pytest.raises(InputError, match=r"No working C\+\+ compiler.*/nope/g\+\+.*set CXX"),
    ):
        find_target("aoti").check((), {}, 1)
    find_target("aoti").check((), {}, 1)
