"""The audit names what a runtime would refuse: symbol, library, architecture, payload."""

import itertools
import struct
import subprocess

import pytest

from graftwork.backend.audit import Origin, audit_library, op_of_symbol
from graftwork.backend.payload import PayloadError, parse_payload, read_program
from graftwork.backend.runtime_exports import (
    UnknownReleaseError,
    exports,
    installed_release,
    release,
    releases,
)


def library(folder, functions, *flags):
    declared = "".join(f"extern int {name}(void);" for name in functions)
    called = "+".join(f"{name}()" for name in functions) or "0"
    (folder / "l.c").write_text(f"{declared} int face(void) {{ return {called}; }}")
    command = ["gcc", "-shared", "-fPIC", str(folder / "l.c"), "-o", str(folder / "l.so")]
    subprocess.run([*command, *flags], check=True)
    return (folder / "l.so").read_bytes()


@pytest.mark.parametrize(
    ("symbol", "op"),
    [
        ("aoti_torch_cuda_scatter_reduce_two_out", "aten.scatter_reduce.two_out"),
        ("aoti_torch_cuda_scatter_src_out", "aten.scatter.src_out"),
        ("aoti_torch_index_put_out", "aten.index_put.default"),
        ("aoti_torch_cuda_topk", "aten.topk.default"),
        ("aoti_torch_item_float32", "aten._local_scalar_dense.default"),
        ("aoti_torch_dtype_float64", None),
        ("cudaMalloc", None),
    ],
)
def test_a_symbol_names_its_op(symbol, op):
    assert op_of_symbol(symbol) == op


def test_an_undefined_function_is_found_with_op_line_and_plugin(tmp_path):
    data = library(tmp_path, ["aoti_torch_cuda_scatter_src_out", "aoti_torch_get_dim"])
    origins = {"aten.scatter": Origin(("model.py:7",), "scatter")}
    (finding,) = audit_library(data, runtime="1.5", origins=origins).findings
    assert finding.name == "aoti_torch_cuda_scatter_src_out"
    assert finding.op == "aten.scatter.src_out"
    assert "model.py:7" in str(finding) and "scatter" in str(finding) and "1.5" in str(finding)


def test_the_plugin_that_provides_an_op_is_named_for_any_library(tmp_path):
    data = library(tmp_path, ["aoti_torch_cuda__upsample_bilinear2d_aa"])
    (finding,) = audit_library(data).findings
    assert finding.plugin == "antialiased-resize"


def test_a_function_of_a_runtime_of_ones_own_is_no_finding(tmp_path):
    data = library(tmp_path, ["aoti_torch_item_float32"])
    assert audit_library(data, runtime="1.5").findings
    extra = ["aoti_torch_item_float32"]
    assert not audit_library(data, runtime="1.5", extra_symbols=extra).findings


def test_what_a_newer_release_exports_an_older_one_misses(tmp_path):
    data = library(tmp_path, ["aoti_torch_cuda_sort_stable"])
    assert not audit_library(data, runtime="1.4").findings
    assert audit_library(data, runtime="1.2").findings


def test_any_other_undefined_function_is_found(tmp_path):
    (finding,) = audit_library(library(tmp_path, ["GOMP_parallel"])).findings
    assert finding.name == "GOMP_parallel"


def test_cudart_comes_with_the_runtime_but_the_driver_must_be_linked(tmp_path):
    assert not audit_library(library(tmp_path, ["cudaMalloc"])).findings
    (finding,) = audit_library(library(tmp_path, ["cuLaunchKernel"])).findings
    assert "libcuda" in finding.message


def test_a_needed_library_that_devices_lack_is_found(tmp_path):
    data = library(tmp_path, [], "-Wl,--no-as-needed", "-lgomp")
    finding = next(f for f in audit_library(data).findings if f.kind == "library")
    assert finding.name.startswith("libgomp") and finding.plugin == "link-as-needed"


def test_bytes_that_are_no_library_are_a_finding():
    (finding,) = audit_library(b"nonsense").findings
    assert finding.kind == "library"


def test_each_release_keeps_what_the_one_before_exports():
    tables = list(releases().values())
    for older, newer in itertools.pairwise(tables):
        assert older.symbols <= newer.symbols


def test_the_installed_executorch_is_known_and_its_own_list_is_exported():
    from executorch.backends.cuda.cuda_backend import CudaBackend

    shims = {n for n in CudaBackend.get_supported_fallback_kernels() if n.startswith("aoti_")}
    assert shims and shims <= exports(installed_release().name)


def test_an_unknown_release_names_the_known_ones():
    with pytest.raises(UnknownReleaseError, match=r"1\.5"):
        release("0.9")
    assert release("1.5.1+cpu").name == "1.5"


def encode(key, weights):
    def text(value):
        return struct.pack("<I", len(value)) + value.encode()

    payload = b"ETCUDAFQN3" + text(key) + struct.pack("<I", len(weights))
    for fqn, sizes in weights:
        payload += text(fqn) + text(f"w:{fqn}")
        payload += struct.pack("<QiiqI", 64, 6, 1, 0, len(sizes))
        payload += struct.pack(f"<{len(sizes)}q", *sizes) * 2
    return payload


def test_every_payload_format_names_its_library():
    assert parse_payload(b"", "forward")[:2] == ("method-name", "forward_so_blob")
    assert parse_payload(b"abc_so_blob\nabc_weights_blob", "f")[:2] == (
        "content-key",
        "abc_so_blob",
    )
    kind, key, weights = parse_payload(encode("x_so_blob", [("a.b", (2, 3)), ("c", ())]), "f")
    assert (kind, key) == ("ETCUDAFQN3", "x_so_blob")
    assert [(w.fqn, w.sizes, w.device) for w in weights] == [
        ("a.b", (2, 3), "cuda"),
        ("c", (), "cuda"),
    ]


@pytest.mark.parametrize(
    "payload", [b"\x01\x02", b"ETCUDAFQN9rest", b"ETCUDAFQN3\xff\xff\xff\xff"]
)
def test_an_unknown_or_damaged_payload_is_refused(payload):
    with pytest.raises(PayloadError):
        parse_payload(payload, "forward")


def test_a_file_that_is_no_program_is_refused(tmp_path):
    (tmp_path / "x.pte").write_bytes(b"nothing of the kind")
    with pytest.raises(PayloadError, match=r"x\.pte"):
        read_program(tmp_path / "x.pte")
