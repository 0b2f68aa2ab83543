#!/usr/bin/env bash
# The pinned compiler, for kernels in which one of sixteen waits takes up to 32 us longer (`delay` in kernels/sm90_ptx.cuh):
# an order that nothing but the speed of warps keeps is lost, so that GPU tests fail or do not end.
#
#   python3 kernels/build.py    # installs the compiler
#   TREFOIL_NVCC=scripts/nvcc_with_delays.sh scripts/gpu_bundle.sh
set -euo pipefail
compilers=("$(dirname "$0")"/../.venv/nvcc-*/nvidia/*/bin/nvcc)
[ -x "${compilers[0]}" ] || { echo "nvcc_with_delays.sh: no compiler in .venv: run python3 kernels/build.py" >&2; exit 1; }
exec "${compilers[0]}" -DTREFOIL_DELAYS "$@"
