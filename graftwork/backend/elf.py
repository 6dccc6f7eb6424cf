"""Read a compiled library: what it needs from outside, and which GPUs its kernels are for.

A program lowered to the CUDA delegate is a shared library inside a `.pte`. Whether it loads on
a device is written in that library: the symbols it leaves undefined, the libraries it asks for,
and the kernels embedded in it. This module reads those facts from the bytes, on any machine,
without loading the library and without NVIDIA's tools.

`read_elf(data)` gives the library's dynamic symbols and needed libraries, `device_code(data)`
the embedded kernels (cubin, PTX, AMD code objects), each with its architecture.
"""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Iterator

__all__ = ["DeviceCode", "Elf", "ElfError", "device_code", "kernel_resources", "read_elf"]

_ELF_MAGIC = b"\x7fELF"
_FATBIN_MAGIC = b"\x50\xed\x55\xba"
_EM_CUDA, _EM_AMDGPU = 190, 224
_SHT_STRTAB, _SHT_DYNAMIC, _SHT_SYMTAB, _SHT_DYNSYM = 3, 6, 2, 11
_SHT_GNU_VERSYM = 0x6FFFFFFF
_DT_NEEDED, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 1, 14, 15, 29
_STB_WEAK = 2
_FATBIN_PTX, _FATBIN_CUBIN = 1, 2
_FATBIN_ARCH_SPECIFIC = 1 << 20
_EIATTR_FRAME_SIZE, _EIATTR_REGCOUNT = 0x11, 0x2F

# e_flags & 0xff of an AMD code object (LLVM's EF_AMDGPU_MACH), for the architectures built for.
_AMD_MACH = {0x3F: "gfx90a", 0x4C: "gfx942", 0x41: "gfx1100", 0x4F: "gfx950"}


class ElfError(ValueError):
    """The bytes are not a complete 64-bit little-endian ELF file."""


@dataclasses.dataclass(frozen=True)
class Elf:
    """The dynamic face of a shared library.

    `undefined` are the names the loader must find elsewhere, `weak` those of them it may leave
    unresolved, `versioned` those that name a library's version (glibc, libstdc++: their
    provider is among `needed`). `symbols` maps each named symbol to its address.
    """

    machine: int
    needed: tuple[str, ...]
    runpath: tuple[str, ...]
    undefined: frozenset[str]
    weak: frozenset[str]
    versioned: frozenset[str]
    defined: frozenset[str]
    symbols: dict[str, int]


@dataclasses.dataclass(frozen=True)
class DeviceCode:
    """One embedded kernel image.

    `kind` is "cubin" (machine code), "ptx" (compiled by the driver at load) or "hsaco" (AMD);
    `arch` is spelled as the compilers do: "sm_80", "sm_90a", "compute_80", "gfx942".
    `kernel` is the name that Inductor gave the blob, where the library keeps it.
    """

    kernel: str | None
    kind: str
    arch: str
    offset: int

    def runs_on(self, arch: str) -> bool:
        """Whether a GPU of `arch` ("sm_90") can run this image.

        Machine code runs on its own major version and the same or a later minor one; PTX on
        anything as new as it asks for. A suffix ("sm_90a") binds to exactly that version.
        """
        if self.kind == "hsaco" or arch.startswith("gfx"):
            return self.arch == arch
        have, suffix = _capability(self.arch)
        want, _ = _capability(arch)
        if suffix:
            return have == want
        if self.kind == "ptx":
            return have <= want
        return have[0] == want[0] and have[1] <= want[1]


def read_elf(data: bytes) -> Elf:
    """Read the dynamic section and the symbols of a 64-bit little-endian ELF file.

    Raises ElfError for anything else, a truncated file included.
    """
    try:
        return _read_elf(data)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ElfError(f"damaged ELF file: {error}") from error


def device_code(data: bytes) -> tuple[DeviceCode, ...]:
    """Every kernel image embedded in the library `data`, in file order."""
    starts = _kernel_starts(data)
    found: list[DeviceCode] = []
    inside_until = 0
    for offset in _magics(data):
        if offset < inside_until:
            continue
        name = starts.get(offset)
        if data[offset : offset + 4] == _FATBIN_MAGIC:
            end, images = _fatbin(data, offset, name)
            found.extend(images)
            inside_until = max(inside_until, end)
        elif (image := _nested_elf(data, offset, name)) is not None:
            found.append(image)
    return tuple(found)


def kernel_resources(cubin: bytes) -> tuple[int, int]:
    """Registers a thread, and bytes of stack a thread (spills), of the largest kernel in `cubin`.

    Read from the `.nv.info` records that ptxas writes: format u8, attribute u8, size u16, then
    the kernel's symbol and the value. (0, 0) where there are none.
    """
    registers = stack = 0
    try:
        sections = _sections(cubin)
        (names_index,) = struct.unpack_from("<H", cubin, 62)
        for section in sections:
            if _string(cubin, sections[names_index], section.name) != ".nv.info":
                continue
            content, at = _bytes(cubin, section), 0
            while at + 4 <= len(content):
                layout, attribute, size = struct.unpack_from("<BBH", content, at)
                if layout == 4 and attribute in (_EIATTR_FRAME_SIZE, _EIATTR_REGCOUNT):
                    (value,) = struct.unpack_from("<I", content, at + 8)
                    if attribute == _EIATTR_REGCOUNT:
                        registers = max(registers, value)
                    else:
                        stack = max(stack, value)
                at += 4 + (size if layout == 4 else 0)
    except (struct.error, IndexError) as error:
        raise ElfError(f"damaged cubin: {error}") from error
    return registers, stack


@dataclasses.dataclass(frozen=True)
class _Section:
    name: int
    type: int
    address: int
    offset: int
    size: int
    link: int
    entry: int


def _read_elf(data: bytes) -> Elf:
    if data[:4] != _ELF_MAGIC:
        raise ElfError("not an ELF file: it does not start with \\x7fELF")
    if data[4:6] != b"\x02\x01":
        raise ElfError("not a 64-bit little-endian ELF file")
    (machine,) = struct.unpack_from("<H", data, 18)
    sections = _sections(data)
    needed: list[str] = []
    runpath: list[str] = []
    undefined: set[str] = set()
    weak: set[str] = set()
    versioned: set[str] = set()
    symbols: dict[str, int] = {}
    defined: set[str] = set()
    versym = next((s for s in sections if s.type == _SHT_GNU_VERSYM), None)
    for section in sections:
        if section.type == _SHT_DYNAMIC:
            strings = sections[section.link]
            for tag, value in struct.iter_unpack("<qQ", _bytes(data, section)):
                if tag == 0:
                    break
                if tag == _DT_NEEDED:
                    needed.append(_string(data, strings, value))
                elif tag in (_DT_RPATH, _DT_RUNPATH):
                    runpath.append(_string(data, strings, value))
        elif section.type in (_SHT_DYNSYM, _SHT_SYMTAB):
            strings = sections[section.link]
            rows = struct.iter_unpack("<IBBHQQ", _bytes(data, section))
            for index, (name_at, info, _other, shndx, value, _size) in enumerate(rows):
                name = _string(data, strings, name_at)
                if not name:
                    continue
                if shndx != 0:
                    symbols.setdefault(name, value)
                    if section.type == _SHT_DYNSYM:
                        defined.add(name)
                    continue
                if section.type != _SHT_DYNSYM:
                    continue
                undefined.add(name)
                if info >> 4 == _STB_WEAK:
                    weak.add(name)
                if versym is not None:
                    (version,) = struct.unpack_from("<H", data, versym.offset + 2 * index)
                    if version & 0x7FFF > 1:
                        versioned.add(name)
    return Elf(
        machine=machine,
        needed=tuple(needed),
        runpath=tuple(runpath),
        undefined=frozenset(undefined),
        weak=frozenset(weak),
        versioned=frozenset(versioned),
        defined=frozenset(defined),
        symbols=symbols,
    )


def _sections(data: bytes) -> list[_Section]:
    (table,) = struct.unpack_from("<Q", data, 40)
    entry, count = struct.unpack_from("<HH", data, 58)
    if count and (entry != 64 or table + entry * count > len(data)):
        raise ElfError("the section table lies outside the file")
    sections = []
    for i in range(count):
        name, kind, _flags, address, offset, size, link, _info, _align, each = struct.unpack_from(
            "<IIQQQQIIQQ", data, table + i * entry
        )
        sections.append(_Section(name, kind, address, offset, size, link, each))
    return sections


def _bytes(data: bytes, section: _Section) -> bytes:
    content = data[section.offset : section.offset + section.size]
    if len(content) != section.size or (section.entry and section.size % section.entry):
        raise ElfError("a section lies outside the file")
    return content


def _string(data: bytes, section: _Section, at: int) -> str:
    start = section.offset + at
    end = data.find(b"\0", start)
    if at >= section.size or end < 0:
        raise ElfError("a name lies outside its string table")
    return data[start:end].decode("utf-8")


def _magics(data: bytes) -> Iterator[int]:
    for match in re.finditer(re.escape(_ELF_MAGIC) + b"|" + re.escape(_FATBIN_MAGIC), data):
        yield match.start()


def _nested_elf(data: bytes, offset: int, kernel: str | None) -> DeviceCode | None:
    if offset == 0 or len(data) < offset + 64:
        return None
    (machine,) = struct.unpack_from("<H", data, offset + 18)
    (flags,) = struct.unpack_from("<I", data, offset + 48)
    if machine == _EM_AMDGPU:
        arch = _AMD_MACH.get(flags & 0xFF, f"gfx?{flags & 0xFF:#x}")
        return DeviceCode(kernel, "hsaco", arch, offset)
    if machine != _EM_CUDA:
        return None
    # CUDA 13 moved the architecture up by one byte, with ABI version 8 in e_ident[8]; before,
    # the lowest byte held it and bit 11 marked arch-specific code (sm_90a).
    if data[offset + 8] >= 8:
        return DeviceCode(kernel, "cubin", f"sm_{flags >> 8 & 0xFF}", offset)
    suffix = "a" if flags & 0x800 else ""
    return DeviceCode(kernel, "cubin", f"sm_{flags & 0xFF}{suffix}", offset)


def _fatbin(data: bytes, offset: int, kernel: str | None) -> tuple[int, list[DeviceCode]]:
    """The images of one fatbin, and the offset behind it; nothing if it is cut short.

    Header: magic, version u16, header size u16, size of all entries u64. Each entry: kind u16,
    version u16, header size u32, payload size u64, the architecture as u32 at byte 28, flags as
    u64 at byte 40, of which bit 20 marks arch-specific code (compute_90a).
    """
    if len(data) < offset + 16:
        return offset, []
    _magic, _version, header, size = struct.unpack_from("<IHHQ", data, offset)
    at, end = offset + header, offset + header + size
    images: list[DeviceCode] = []
    while at + 64 <= min(end, len(data)):
        kind, _entry_version, entry_header, payload = struct.unpack_from("<HHIQ", data, at)
        (arch,) = struct.unpack_from("<I", data, at + 28)
        (flags,) = struct.unpack_from("<Q", data, at + 40)
        suffix = "a" if flags & _FATBIN_ARCH_SPECIFIC else ""
        if kind == _FATBIN_PTX:
            images.append(DeviceCode(kernel, "ptx", f"compute_{arch}{suffix}", at))
        elif kind == _FATBIN_CUBIN:
            nested = _nested_elf(data, at + entry_header, kernel)
            if nested is not None and data[at + entry_header :][:4] == _ELF_MAGIC:
                images.append(nested)
            else:
                images.append(DeviceCode(kernel, "cubin", f"sm_{arch}{suffix}", at))
        if entry_header + payload <= 0:
            break
        at += entry_header + payload
    return end, images


def _kernel_starts(data: bytes) -> dict[int, str]:
    """File offset -> kernel name, from the `__NAME_start` symbols that Inductor's build adds."""
    try:
        elf = read_elf(data)
        sections = _sections(data)
    except ElfError:
        return {}
    starts = {}
    for name, address in elf.symbols.items():
        match = re.fullmatch(r"__(.+)_start", name)
        if match is None:
            continue
        for section in sections:
            if section.address and section.address <= address < section.address + section.size:
                starts[address - section.address + section.offset] = match.group(1)
    return starts


def _capability(arch: str) -> tuple[tuple[int, int], str]:
    match = re.fullmatch(r"(?:sm|compute)_(\d+)([af]?)", arch)
    if match is None:
        raise ValueError(f"not a CUDA architecture: {arch!r} (spelled like sm_90)")
    digits = int(match.group(1))
    return (digits // 10, digits % 10), match.group(2)
