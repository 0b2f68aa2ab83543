#!/usr/bin/env bash
# Fuzzes a target: scripts/fuzz.sh TARGET SECONDS [OPTIONS OF LIBFUZZER]. Needs a nightly compiler and `cargo install cargo-fuzz`.
# Inputs that it finds go to fuzz/found/TARGET, and what makes the target fail to fuzz/artifacts/TARGET.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$1 seconds=$2
shift 2
case $target in
onnx) corpora=(tests/data/onnx) ;;
photo) corpora=(tests/data/images "fuzz/corpus/$target") ;;
*) corpora=("fuzz/corpus/$target") ;;
esac
mkdir -p "fuzz/found/$target"
cargo +nightly fuzz run "$target" "fuzz/found/$target" "${corpora[@]}" -- \
    -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=600 -max_len=8192 "$@"
