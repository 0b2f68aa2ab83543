#!/usr/bin/env bash
# Runs tests of the library with a sanitizer of the compiler: scripts/sanitize_host.sh address|thread [FILTERS].
# Needs nightly Rust and, for threads, its sources: rustup toolchain install nightly --component rust-src
# GPU kernels have their own tools: see CONTRIBUTING.md.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=$1
shift
case $kind in
address) build_std=() few=(ring:: device::cpu exec::cpu:: loops:: files::) ;;
# Without its own build the standard library's locks are taken for races. The schedules of the ring are one thread's.
thread)
    build_std=(-Zbuild-std)
    few=(ring:: device:: engine:: exec::cpu:: loops::team loops::tests::shared ffi:: files:: simulate:: --skip schedules_all)
    ;;
*) echo "expected address or thread, found $kind" >&2 && exit 64 ;;
esac
[ $# -gt 0 ] || set -- "${few[@]}"
export RUSTFLAGS="-Zsanitizer=$kind"
run() {
    cargo +nightly test --lib --no-default-features "${build_std[@]}" --target x86_64-unknown-linux-gnu \
        --target-dir "target/$kind" -- "$@"
}
ASAN_OPTIONS=detect_leaks=0 run "$@"
# Memory that a faulted device may still use is left to it: leaks count where there is no fault.
[ "$kind" != address ] || run "$@" --skip faults --skip a_fault --skip hazard --skip schedules
