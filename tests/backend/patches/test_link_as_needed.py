"""A library that calls no OpenMP function does not ask for libgomp."""

import subprocess

import pytest

from graftwork.backend.elf import read_elf
from graftwork.backend.patches import link_as_needed as patch
from graftwork.plugins import torch_private

PLAIN = "int face(int x) { return x + 1; }\n"
PARALLEL = "#include <omp.h>\nint face(int x) { return x + omp_get_num_threads(); }\n"


def needed(folder, source):
    """What a library needs that is linked with Inductor's flags, by a linker that keeps all."""
    builder = torch_private.inductor_cpp_builder()
    cflags, ldflags, _, _, libraries, _ = builder._get_openmp_args(builder.get_cpp_compiler())
    (folder / "l.cpp").write_text(source)
    command = ["g++", "-shared", "-fPIC", str(folder / "l.cpp"), "-o", str(folder / "l.so")]
    command += [f"-{flag}" for flag in cflags] + ["-Wl,--no-as-needed"]
    command += [f"-{flag}" for flag in ldflags] + [f"-l{name}" for name in libraries]
    subprocess.run(command, check=True)
    return {name.split(".")[0] for name in read_elf((folder / "l.so").read_bytes()).needed}


def test_an_unused_openmp_is_not_asked_for(tmp_path):
    """pytorch/pytorch#166087."""
    with patch.patch_compile():
        assert "libgomp" not in needed(tmp_path, PLAIN)
        assert "libgomp" in needed(tmp_path, PARALLEL)


def test_without_it_an_unused_openmp_is_asked_for(tmp_path):
    if not patch._is_needed():
        pytest.skip("torch links as needed by itself")
    assert "libgomp" in needed(tmp_path, PLAIN)


def test_nothing_stays_patched():
    builder = torch_private.inductor_cpp_builder()
    before = builder._get_openmp_args
    with patch.patch_compile():
        assert builder._get_openmp_args is not before
    assert builder._get_openmp_args is before
