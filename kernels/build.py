#!/usr/bin/env python3
"""Regenerates kernels/ptx from kernels/*.cu with the pinned compiler, or checks that it is up to date.

    python3 kernels/build.py            write ptx/*.ptx and ptx/manifest.json
    python3 kernels/build.py --check    fail if they differ from what the sources compile to

Needs python3 with pip and g++. The compiler (five packages, 270 MB) is installed into .venv/ on the first run.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

KERNELS = Path(__file__).resolve().parent
PTX = KERNELS / "ptx"

# All five are pinned: a newer companion writes a newer PTX version, which older drivers refuse.
PACKAGES = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
]
COMPILER = KERNELS.parent / ".venv" / "nvcc-13.0.88"
PTX_VERSION, TARGET = "9.0", "sm_80"
# ptxas runs for these, to record what the driver's compiler will make of the PTX.
ARCHITECTURES = ["sm_80", "sm_89", "sm_90", "sm_120"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the kept files, write nothing")
    check = parser.parse_args().check
    binaries = install_compiler() / "nvidia" / "cu13" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        files = generate(binaries, Path(folder))
    if check:
        sys.exit(compare(files))
    PTX.mkdir(exist_ok=True)
    for kept in PTX.iterdir():
        if kept.name not in files:
            kept.unlink()
    for name, text in files.items():
        (PTX / name).write_text(text)
    print(f"wrote {len(files)} files to {PTX.relative_to(KERNELS.parent)}")


def install_compiler():
    """Installs the compiler if it is not there, whole or not at all."""
    if not COMPILER.exists():
        COMPILER.parent.mkdir(exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=COMPILER.parent))
        try:
            run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", partial, *PACKAGES])
            partial.rename(COMPILER)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return COMPILER


def generate(binaries, folder):
    """Compiles every kernel; returns the texts of the kept files by name."""
    flags = (KERNELS / "flags.txt").read_text().split()
    files, modules = {}, {}
    for source in sorted(KERNELS.glob("*.cu")):
        ptx = folder / f"{source.stem}.ptx"
        # Relative names: nothing of this machine may get into the PTX.
        run([binaries / "nvcc", *flags, "-Werror", "all-warnings", source.name, "-o", ptx], cwd=KERNELS)
        text = ptx.read_text()
        verify(source.name, text)
        files[ptx.name] = text
        modules[source.stem] = entries(binaries, ptx, text)
    sources = {p.name: fnv1a64(p.read_bytes()) for p in sorted(KERNELS.iterdir()) if p.suffix in (".cu", ".cuh", ".txt")}
    manifest = {"compiler": PACKAGES, "flags": flags, "sources_fnv1a64": sources, "modules": modules}
    files["manifest.json"] = json.dumps(manifest, indent=1) + "\n"
    return files


def verify(name, text):
    """Checks what a driver and a reader will meet."""
    code = re.sub(r"//.*", "", text)
    if f".version {PTX_VERSION}\n" not in code or f".target {TARGET}\n" not in code:
        sys.exit(f"{name}: not PTX {PTX_VERSION} for {TARGET}")
    if "/" in code or ".file" in code:
        sys.exit(f"{name}: the PTX contains a path")


def entries(binaries, ptx, text):
    """Parameters, threads and, for each architecture, registers and memory of every entry point."""
    result = {}
    for match in re.finditer(r"\.visible \.entry (\w+)\(\s*\.param [^\n]*\[(\d+)\]\s*\)\s*\.maxntid (\d+)", text):
        result[match[1]] = {"param_bytes": int(match[2]), "threads": int(match[3])}
    for arch in ARCHITECTURES:
        cubin = ptx.with_suffix(f".{arch}.cubin")
        log = run([binaries / "ptxas", "-v", f"-arch={arch}", ptx, "-o", cubin])
        for name, part in re.findall(r"entry function '(\w+)'[^\n]*\n(.*?registers[^\n]*)", log, re.S):
            number = lambda pattern: int((re.search(pattern, part) or [0, 0])[1])
            result[name][arch] = {
                "registers": number(r"Used (\d+) registers"),
                "spill_bytes": number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
                "stack_bytes": number(r"(\d+) bytes stack frame"),
                "static_shared_bytes": number(r"(\d+) bytes smem"),
            }
    spilled = [f"{name} on {arch}" for name, entry in result.items() for arch in ARCHITECTURES
               if entry[arch]["spill_bytes"] > 0]
    if spilled:
        print(f"warning: registers are spilled in {', '.join(spilled)}", file=sys.stderr)
    return result


def fnv1a64(data):
    """Short enough to be computed again by a test without a dependency."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def compare(files):
    """Prints the kept files that differ; the exit status."""
    kept = {p.name: p.read_text() for p in PTX.iterdir()} if PTX.exists() else {}
    different = sorted(name for name in files.keys() | kept.keys() if files.get(name) != kept.get(name))
    for name in different:
        print(f"ptx/{name} is not what the sources compile to: run python3 kernels/build.py", file=sys.stderr)
    return 1 if different else 0


def run(command, cwd=None):
    """Runs a command; returns what it printed, or prints it and stops."""
    done = subprocess.run([os.fspath(c) for c in command], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed:\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    main()
