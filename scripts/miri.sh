#!/usr/bin/env bash
# Runs what needs no driver and no threads of the system under Miri: the books of the ring and of the batcher, values and
# loops on the CPU, the readers of ONNX and safetensors files. Needs nightly Rust with Miri and its sources:
# rustup toolchain install nightly --component miri,rust-src
set -euo pipefail
cd "$(dirname "$0")/.."
# Files of the tests are read, and the hash maps of a file need random numbers.
export MIRIFLAGS="-Zmiri-disable-isolation ${MIRIFLAGS:-}"
cargo +nightly miri test --lib --no-default-features --target-dir target/miri -- \
    ring::credits ring::batcher::state graph:: tensor:: model::safetensors_header files:: "$@"
