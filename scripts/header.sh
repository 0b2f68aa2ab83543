#!/usr/bin/env bash
# Writes include/trefoil.h from src/ffi/; with --check, fails if it is not fresh.
set -euo pipefail
cd "$(dirname "$0")/.."
exec cargo run --quiet --locked --manifest-path scripts/header/Cargo.toml --target-dir target/header -- "$@"
