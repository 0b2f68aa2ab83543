#!/usr/bin/env python3
"""Regenerates kernels/ptx and kernels/cubin from kernels/*.cu with the pinned compiler, or checks that they are up to
date.

    python3 kernels/build.py            write ptx/*.ptx, cubin/*.cubin, functions/*.ptx and ptx/manifest.json
    python3 kernels/build.py --check    fail if they differ from what the sources compile to

Either way the assembler takes the loops that tests keep as PTX, or this fails.

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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

KERNELS = Path(__file__).resolve().parent
FOLDERS = ["ptx", "cubin", "functions"]  # of the kept files
SOURCES = [".cu", ".cuh", ".txt"]
# Functions that written-out loops call, and loops that tests keep.
FUNCTIONS, LOOPS = KERNELS / "functions", KERNELS.parent / "tests" / "golden" / "ptx"

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
ARCHITECTURES = ["sm_80", "sm_89", "sm_90", "sm_100", "sm_120"]
# Kernels of this prefix use instructions that only compute capability 9.0 has; they are kept as code for it.
SM90_PREFIX, SM90_TARGET = "sm90_", "sm_90a"
# Such kernels whose source includes one of these are compiled once more, by this flag, as a module of that suffix.
TWINS = {'#include "element.cuh"': ("-DTREFOIL_BF16", "_bf16"), '#include "activation.cuh"': ("-DTREFOIL_SILU", "_silu"),
         '#include "gelu.cuh"': ("-DTREFOIL_GELU", "_gelu")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the kept files, write nothing")
    check = parser.parse_args().check
    binaries = install_compiler() / "nvidia" / "cu13" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        files = generate(binaries, Path(folder))
        assemble_loops(binaries, Path(folder))
    if check:
        sys.exit(compare(files))
    for name in kept_files().keys() - files.keys():
        (KERNELS / name).unlink()
    for name, data in files.items():
        (KERNELS / name).parent.mkdir(exist_ok=True)
        (KERNELS / name).write_bytes(data)
    print(f"wrote {len(files)} files to {', '.join(f'kernels/{folder}' for folder in FOLDERS)}")


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
    """Compiles every kernel, as many at a time as there are cores; returns the contents of the kept files by name."""
    flags, sm90_flags = [(KERNELS / name).read_text().split() for name in ("flags.txt", "flags_sm90.txt")]
    files, modules, cubins = {}, {}, {}

    def sm90(source, name, defines):
        own = Path(tempfile.mkdtemp(dir=folder))
        cubin = own / f"{name}.cubin"
        more = ["-Xptxas", "-v", "--keep", "--keep-dir", own]
        # Relative names: nothing of this machine may get into the kept files.
        log = run([*compile, source.name, *sm90_flags, *defines, *more, "-o", cubin], cwd=KERNELS)
        verify_sm90(f"{source.name} {' '.join(defines)}", log)
        return cubin.read_bytes(), entries((own / f"{source.stem}.ptx").read_text(), {SM90_TARGET: log})

    def portable(source):
        ptx = folder / f"{source.stem}.ptx"
        run([*compile, source.name, *flags, "-o", ptx], cwd=KERNELS)
        text = ptx.read_text()
        verify(source.name, text)
        return text.encode(), entries(text, {arch: assemble(binaries, ptx, arch) for arch in ARCHITECTURES})

    compile = [binaries / "nvcc", "-Werror", "all-warnings"]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {}
        for source in sorted(KERNELS.glob("*.cu")):
            if source.stem.startswith(SM90_PREFIX):
                twins = [twin for include, twin in TWINS.items() if include in source.read_text()]
                for flag, suffix in [(None, ""), *twins]:
                    name, defines = source.stem + suffix, [flag] if flag else []
                    jobs[name] = "cubin", pool.submit(sm90, source, name, defines)
            else:
                jobs[source.stem] = "ptx", pool.submit(portable, source)
        for name, (kind, job) in jobs.items():
            try:
                data, modules[name] = job.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
            files[f"{kind}/{name}.{kind}"] = data
            if kind == "cubin":
                cubins[name] = fnv1a64(data)
    for source in sorted(FUNCTIONS.glob("*.cu")):
        ptx = folder / f"{source.stem}.ptx"
        functions_flags = (FUNCTIONS / "flags.txt").read_text().split()
        run([binaries / "nvcc", "-Werror", "all-warnings", source.name, *functions_flags, "-o", ptx], cwd=FUNCTIONS)
        verify(source.name, ptx.read_text())
        files[f"functions/{ptx.name}"] = ptx.read_bytes()
    paths = sorted(p for f in (KERNELS, FUNCTIONS) for p in f.iterdir() if p.suffix in SOURCES)
    sources = {p.relative_to(KERNELS).as_posix(): fnv1a64(p.read_bytes()) for p in paths}
    manifest = {
        "compiler": PACKAGES,
        "flags": flags,
        "sm90_flags": sm90_flags,
        "sources_fnv1a64": sources,
        "cubins_fnv1a64": cubins,
        "modules": modules,
    }
    files["ptx/manifest.json"] = (json.dumps(manifest, indent=1) + "\n").encode()
    return files


def verify(name, text):
    """Checks what a driver and a reader will meet."""
    code = re.sub(r"//.*", "", text)
    if f".version {PTX_VERSION}\n" not in code or f".target {TARGET}\n" not in code:
        sys.exit(f"{name}: not PTX {PTX_VERSION} for {TARGET}")
    if "/" in code or ".file" in code:
        sys.exit(f"{name}: the PTX contains a path")


def verify_sm90(name, log):
    """Stops where the assembler says that it takes warpgroup products apart, or ignores what was asked for."""
    complaints = re.findall(r".*\bC75\d\d\b.*", log)
    if complaints:
        sys.exit(f"{name}: " + "\n".join(complaints))


def assemble(binaries, ptx, arch):
    """What ptxas says of a PTX file."""
    return run([binaries / "ptxas", "-v", f"-arch={arch}", ptx, "-o", ptx.with_suffix(f".{arch}.cubin")])


def assemble_loops(binaries, folder):
    """Assembles the loops that tests keep, each for what its target runs on; stops where the assembler complains."""
    for ptx in sorted(LOOPS.glob("*.ptx")):
        first = int(re.search(r"\.target sm_(\d+)", ptx.read_text())[1])
        for arch in (arch for arch in ARCHITECTURES if int(arch.removeprefix("sm_")) >= first):
            run([binaries / "ptxas", f"-arch={arch}", ptx, "-o", folder / f"{ptx.stem}.{arch}.cubin"])


def entries(ptx, logs):
    """Parameters, threads and, for each architecture, registers and memory of every entry point of a PTX text."""
    result = {}
    for match in re.finditer(r"\.visible \.entry (\w+)\(\s*\.param [^\n]*\[(\d+)\]\s*\)\s*\.maxntid (\d+)", ptx):
        result[match[1]] = {"param_bytes": int(match[2]), "threads": int(match[3])}
    for arch, log in logs.items():
        for name, part in re.findall(r"entry function '(\w+)'[^\n]*\n(.*?registers[^\n]*)", log, re.S):
            number = lambda pattern: int((re.search(pattern, part) or [0, 0])[1])
            result[name][arch] = {
                "registers": number(r"Used (\d+) registers"),
                "spill_bytes": number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
                "stack_bytes": number(r"(\d+) bytes stack frame"),
                "static_shared_bytes": number(r"(\d+) bytes smem"),
            }
    spilled = [f"{name} on {arch}" for name, entry in result.items() for arch in logs
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
    kept = kept_files()
    different = sorted(name for name in files.keys() | kept.keys() if files.get(name) != kept.get(name))
    for name in different:
        print(f"{name} is not what the sources compile to: run python3 kernels/build.py", file=sys.stderr)
    return 1 if different else 0


def kept_files():
    """Contents of the kept files by name."""
    paths = [path for folder in FOLDERS if (KERNELS / folder).exists() for path in (KERNELS / folder).iterdir()]
    return {p.relative_to(KERNELS).as_posix(): p.read_bytes() for p in paths if p.suffix not in SOURCES}


def run(command, cwd=None):
    """Runs a command; returns what it printed, or prints it and stops."""
    done = subprocess.run([os.fspath(c) for c in command], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed:\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    main()
