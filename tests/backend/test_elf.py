"""A compiled library is read as it is, and a damaged one is an error, never a wrong answer."""

import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest
import triton
from hypothesis import given, settings
from hypothesis import strategies as st

from graftwork.backend.elf import DeviceCode, ElfError, device_code, kernel_resources, read_elf

PTXAS = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
KERNEL = (
    ".version 8.0\n.target {arch}\n.address_size 64\n"
    ".visible .entry k(.param .u64 p) {{ .reg .u64 %a; .reg .u32 %b; "
    "ld.param.u64 %a, [p]; mov.u32 %b, 7; st.global.u32 [%a], %b; ret; }}\n"
)
SOURCE = """
extern int aoti_torch_known(void); extern int cuInit(unsigned);
__attribute__((weak)) extern int maybe(void);
#include <math.h>
int face(double x) { return aoti_torch_known() + cuInit(0) + (maybe ? maybe() : 0) + (int)cos(x); }
"""


def compile_library(folder, source=SOURCE, *flags):
    path = folder / "library.so"
    (folder / "library.c").write_text(source)
    command = ["gcc", "-shared", "-fPIC", str(folder / "library.c"), "-o", str(path), "-lm"]
    subprocess.run([*command, *flags], check=True)
    return path.read_bytes()


def assemble(folder, arch):
    (folder / f"{arch}.ptx").write_text(KERNEL.format(arch=arch))
    cubin = folder / f"{arch}.cubin"
    command = [str(PTXAS), f"-arch={arch}", str(folder / f"{arch}.ptx"), "-o", str(cubin)]
    subprocess.run(command, check=True)
    return cubin.read_bytes()


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compile_library(tmp_path_factory.mktemp("elf"))


def test_the_dynamic_face_of_a_library_is_read(library):
    elf = read_elf(library)
    assert {"aoti_torch_known", "cuInit", "maybe", "cos"} <= elf.undefined
    assert "maybe" in elf.weak and "cuInit" not in elf.weak
    assert "cos" in elf.versioned and "aoti_torch_known" not in elf.versioned
    assert elf.needed == ("libm.so.6",)
    assert "face" in elf.defined


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_90a"])
def test_a_cubin_says_its_architecture_and_registers(tmp_path, arch):
    cubin = assemble(tmp_path, arch)
    (code,) = device_code(b"\0" * 16 + cubin)
    assert (code.kind, code.arch, code.offset) == ("cubin", arch, 16)
    registers, stack = kernel_resources(cubin)
    assert 0 < registers < 64 and stack == 0


def test_a_cubin_of_cuda_13_keeps_its_architecture_elsewhere(tmp_path):
    nvcc_ptxas = shutil.which("ptxas") or "/usr/local/cuda/bin/ptxas"
    if not Path(nvcc_ptxas).exists():
        pytest.skip("needs the CUDA toolkit's ptxas")
    (tmp_path / "k.ptx").write_text(KERNEL.format(arch="sm_80"))
    command = [nvcc_ptxas, "-arch=sm_80", str(tmp_path / "k.ptx"), "-o", str(tmp_path / "k")]
    subprocess.run(command, check=True)
    (code,) = device_code(b"\0" * 16 + (tmp_path / "k").read_bytes())
    assert code.arch == "sm_80"


def test_a_fatbin_gives_its_machine_code_and_its_ptx(tmp_path):
    fatbinary = Path("/usr/local/cuda/bin/fatbinary")
    if not fatbinary.exists():
        pytest.skip("needs the CUDA toolkit's fatbinary")
    assemble(tmp_path, "sm_90a")
    images = [f"--image3=kind=elf,sm=90a,file={tmp_path}/sm_90a.cubin"]
    for arch in ("90", "90a"):
        (tmp_path / f"{arch}.ptx").write_text(KERNEL.format(arch=f"sm_{arch}"))
        images.append(f"--image3=kind=ptx,sm={arch},file={tmp_path}/{arch}.ptx")
    subprocess.run([fatbinary, f"--create={tmp_path}/all", "-64", *images], check=True)
    codes = device_code(b"\0" * 64 + (tmp_path / "all").read_bytes())
    assert [(c.kind, c.arch) for c in codes] == [
        ("cubin", "sm_90a"),
        ("ptx", "compute_90"),
        ("ptx", "compute_90a"),
    ]


def test_an_image_carries_the_name_that_the_build_gave_it(tmp_path):
    assemble(tmp_path, "sm_80")
    source = (
        '__asm__(".section .rodata\\n.globl __softmax_0_start\\n__softmax_0_start:\\n'
        f'.incbin \\"{tmp_path}/sm_80.cubin\\"\\n.previous");\nint face(void) {{ return 0; }}\n'
    )
    (code,) = device_code(compile_library(tmp_path, source))
    assert (code.kernel, code.arch) == ("softmax_0", "sm_80")


@pytest.mark.parametrize(
    ("kind", "arch", "gpu", "runs"),
    [
        ("cubin", "sm_80", "sm_80", True),
        ("cubin", "sm_80", "sm_86", True),
        ("cubin", "sm_86", "sm_80", False),
        ("cubin", "sm_80", "sm_90", False),
        ("cubin", "sm_90a", "sm_90", True),
        ("ptx", "compute_80", "sm_90", True),
        ("ptx", "compute_90", "sm_80", False),
        ("ptx", "compute_90a", "sm_100", False),
        ("hsaco", "gfx942", "gfx942", True),
        ("hsaco", "gfx942", "sm_90", False),
    ],
)
def test_which_gpu_runs_which_image(kind, arch, gpu, runs):
    assert DeviceCode(None, kind, arch, 0).runs_on(gpu) is runs


@pytest.mark.parametrize("data", [b"", b"not ELF", b"\x7fELF", b"\x7fELF\x01\x01" + b"\0" * 60])
def test_what_is_no_library_is_refused(data):
    with pytest.raises(ElfError):
        read_elf(data)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_library_is_an_error_or_read_and_nothing_else(library, data):
    damaged = bytearray(library[: data.draw(st.integers(0, len(library)))])
    for _ in range(data.draw(st.integers(0, 8))):
        if damaged:
            at = data.draw(st.integers(0, len(damaged) - 1))
            damaged[at] = data.draw(st.integers(0, 255))
    for reader in (read_elf, device_code, kernel_resources):
        with contextlib.suppress(ElfError):
            reader(bytes(damaged))
