#!/usr/bin/env bash
# Runs what needs no driver and no files under Miri: the CPU device with its threads, the hazard checker, the recorder, the
# books of a batcher, graphs, the wire format of ONNX: scripts/miri.sh [FILTERS].
# Needs nightly Rust with Miri and its sources: rustup toolchain install nightly --component miri,rust-src
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- device::check device::cpu device::trace graph:: onnx::wire \
    ring::batcher::pace ring::batcher::places ring::batcher::state ring::batcher::stats
# Addresses of buffers are numbers at the trait of devices.
export MIRIFLAGS="-Zmiri-permissive-provenance ${MIRIFLAGS:-}"
cargo +nightly miri test --lib --no-default-features --target-dir target/miri -- "$@"
