"""What the compiler makes of every production kernel: ``python -m kernels.audit``.

Compiles for NVIDIA sm_80, sm_90 and sm_100 and for AMD gfx942, in three dtypes, on any Linux
machine; no GPU is needed. For each it reports registers a thread, spills, shared memory, the
width of the loads of logits (of weight, in a head), and instructions. Exit status 1 if anything
spills or such a load is narrower than 16 bytes, 2 if the audit cannot run.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

_EXAMPLES = """examples:
  python -m kernels.audit
  python -m kernels.audit --target sm_90 --dtype bfloat16
  python -m kernels.audit --output results/kernels/audit.csv
"""

TARGETS = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}
DTYPES = {"float32": ("*fp32", 4), "float16": ("*fp16", 2), "bfloat16": ("*bf16", 2)}
LOAD_BYTES = 16
VOCAB_SIZE = 151_936
COLUMNS = (
    "kernel target dtype registers spilled_bytes shared_bytes load_bytes main_loads instructions"
).split()
# Shape of the launches: tensors for what changes from row to row, as the decoding loop passes.
_SIGNATURE = {
    "constrained_ptr": "*i8",
    "temperature": "*fp32",
    "top_k": "*i64",
    "top_p": "*fp32",
    "min_p": "*fp32",
    "seed": "*i64",
    "position": "*i32",
    "stream": "*i32",
    "peaks_ptr": "*fp32",
    "strips_ptr": "*fp32",
    "masses_ptr": "*i64",
    "list_z_ptr": "*fp32",
    "list_ids_ptr": "*i32",
    "token_ptr": "*i64",
    "logprob_ptr": "*fp32",
    "status_ptr": "*i8",
    "removed_ptr": "*fp32",
    "allowed_ptr": "*i64",
    "entropy_ptr": "*fp32",
}
_MAIN_LOAD = "tl.load(logits_ptr"


def main(arguments: list[str] | None = None) -> int:
    """Compile, print, write; returns the exit status: 0, 1 or 2, as above."""
    options = _parser().parse_args(arguments)
    if os.environ.get("TRITON_INTERPRET") == "1":
        print("kernels.audit compiles: unset TRITON_INTERPRET and run again", file=sys.stderr)
        return 2
    try:
        import triton  # noqa: F401
    except ImportError:
        print("kernels.audit needs triton, which is published for Linux", file=sys.stderr)
        return 2
    from kernels.records import print_table, stamp, write_csv

    rows = [
        row
        for target in options.target
        for dtype in options.dtype
        for row in audit(target, dtype, options.vocab_size)
    ]
    print_table(rows, COLUMNS)
    if options.output:
        command = "python -m kernels.audit " + " ".join(arguments or sys.argv[1:])
        write_csv(options.output, rows, stamp(command.strip()))
    bad = [row for row in rows if not passes(row)]
    for row in bad:
        print("FAILED " + ", ".join(f"{key} {row[key]}" for key in COLUMNS), file=sys.stderr)
    return int(bool(bad))


def audit(target: str, dtype: str, vocab_size: int = VOCAB_SIZE) -> list[dict]:
    """Compile the kernels of one target and dtype; one dict of COLUMNS a kernel."""
    rows = []
    for kernel, constants, options in _production(DTYPES[dtype][1], vocab_size, TARGETS[target][2]):
        compiled = _compile(kernel, constants, options, TARGETS[target], DTYPES[dtype])
        name = kernel.__name__.strip("_").removesuffix("_kernel")
        rows.append(measure(compiled, name, target, dtype, _MAIN_LOAD))
    from kernels import audit_heads

    return rows + audit_heads.audit(target, dtype)


def measure(compiled, name: str, target: str, dtype: str, main_load: str) -> dict:
    """COLUMNS of one compiled kernel, whose main loads start with ``main_load`` in its source."""
    amd = target.startswith("gfx")
    widths = load_bytes(compiled.asm["amdgcn" if amd else "ptx"], main_load)
    return {
        "kernel": name,
        "target": target,
        "dtype": dtype,
        **(_measure_amd if amd else _measure_nvidia)(compiled),
        "shared_bytes": compiled.metadata.shared,
        "load_bytes": min(widths, default=""),
        "main_loads": len(widths),
    }


def passes(row: dict) -> bool:
    """Whether nothing spills and every main load is 16 bytes; a kernel has at least one."""
    return row["spilled_bytes"] == 0 and row["load_bytes"] == LOAD_BYTES


def load_bytes(assembly: str, main_load: str = _MAIN_LOAD) -> list[int]:
    """Bytes a thread of every main load in PTX or AMD assembly, by its source line."""
    files = {
        number: Path(folder, name)
        for number, folder, name in re.findall(r'\.file\s+(\d+)\s+"([^"]*)"\s*"([^"]*)"', assembly)
    }
    files |= {n: Path(name) for n, name in re.findall(r'\.file\s+(\d+)\s+"([^"]+)"\s*$',
                                                      assembly, re.MULTILINE)}  # fmt: skip
    widths, main = [], False
    for line in assembly.splitlines():
        if place := re.match(r"\s*\.loc\s+(\d+)\s+(\d+)", line):
            main = _is_main_load(files.get(place[1]), int(place[2]), main_load)
        elif main and (width := _load_width(line)):
            widths.append(width)
    return widths


def _is_main_load(
    path: Path | None,
    line: int,
    main_load: str,
    _sources: dict = {},  # noqa: B006
) -> bool:
    if path not in _sources:
        _sources[path] = path.read_text().splitlines() if path and path.exists() else []
    lines = _sources[path]
    return 0 < line <= len(lines) and main_load in lines[line - 1]


def _load_width(line: str) -> int:
    if load := re.search(r"\bld\.global\S*?(?:\.v(\d))?\.[a-z](\d+)\b", line):
        return int(load[1] or 1) * int(load[2]) // 8
    if copy := re.search(r"\bcp\.async\.c[ag]\.shared\.global\b.*?\], \[.*?\], (0x\w+|\d+)", line):
        return int(copy[1], 0)
    if load := re.search(r"\b(?:global|buffer)_load_(dwordx?(\d)?|ushort|ubyte|short)\w*", line):
        narrow = {"ushort": 2, "short": 2, "ubyte": 1}
        return narrow.get(load[1]) or 4 * int(load[2] or 1)
    return 0


def _production(element_size: int, vocab_size: int, warp_size: int):
    """Kernel, compile-time values and options, of each launch of production."""
    from kernels.masked_sample.triton_impl import _launch_config
    from kernels.masked_sample.triton_rows import _row_kernel
    from kernels.masked_sample.triton_stats import _stats_kernel
    from kernels.masked_sample.triton_tiles import _tile_kernel

    config = _launch_config(element_size, vocab_size, warp_size)
    group = {"GROUP": config.group}
    yield _tile_kernel, group | {"PROGRAM_TILES": config.program_tiles}, config.options
    rows = {"TILES": config.row_tiles, "CAPACITY": config.capacity}
    yield _row_kernel, group | rows, config.row_options
    yield _stats_kernel, group, config.options


def _compile(kernel, constants, options, target, dtype):
    types = _SIGNATURE | {"logits_ptr": dtype[0], "bitmask_ptr": "*i16" if dtype[1] == 2 else "*i8"}
    aligned = ("logits_stride", "bitmask_stride", "readable")
    return compile_kernel(kernel, types, aligned, constants, options, target)


def compile_kernel(kernel, types: dict, aligned: tuple, constants: dict, options: dict, target):
    """Compile for a target of TARGETS; what ``types`` leaves out is int32.

    Pointers and the arguments in ``aligned`` are multiples of 16.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    signature = {name: types.get(name, "i32") for name in names}
    signature |= dict.fromkeys(constants, "constexpr")
    # What a launch finds out by itself: allocations, and rows of a padded vocabulary, are aligned.
    places = [
        (at,)
        for at, name in enumerate(names)
        if signature[name] != "constexpr" and (name.endswith("_ptr") or name in aligned)
    ]
    source = ASTSource(
        kernel,
        signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={at: [["tt.divisibility", 16]] for at in places},
    )
    # Triton's cache knows kernels by their text: what it holds may name files of a checkout that is
    # gone, and loads are told apart by their source lines.
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.always_compile = True
        return triton.compile(source, target=GPUTarget(*target), options=options)


def _measure_nvidia(compiled) -> dict:
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _tool("cuobjdump", "-res-usage", file.name)
        listing = _tool("nvdisasm", "-c", file.name)
    stack, local = (int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("STACK", "LOCAL"))
    return {
        "registers": int(re.search(r"REG:(\d+)", usage)[1]),
        "spilled_bytes": stack + local,
        "instructions": len(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+\S", listing, re.MULTILINE)),
    }


def _tool(name: str, *arguments: str) -> str:
    """Run one of the NVIDIA tools that triton carries."""
    import triton.backends.nvidia as nvidia

    path = Path(nvidia.__file__).parent / "bin" / name
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout


def _measure_amd(compiled) -> dict:
    listing = compiled.asm["amdgcn"]

    def count(name: str) -> int:
        return int(re.search(rf"\.{name}:\s+(\d+)", listing)[1])

    # Scalars that spill go to lanes of a vector register, unless there is a private segment.
    return {
        "registers": count("vgpr_count"),
        "spilled_bytes": count("private_segment_fixed_size") + 4 * count("vgpr_spill_count"),
        "instructions": len(
            re.findall(r"^\s+(?:[vs]|ds|global|buffer|flat)_\w+", listing, re.MULTILINE)
        ),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kernels.audit",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", metavar="CSV", help="also write the table to this file")
    parser.add_argument("--target", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--vocab-size", type=int, default=VOCAB_SIZE, help="default %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(main())
