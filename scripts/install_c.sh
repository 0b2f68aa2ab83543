#!/usr/bin/env bash
# Builds the C library and installs it with its headers and its pkg-config file:
#   scripts/install_c.sh PREFIX [FEATURES]
# FEATURES are those of the library that are wanted: `cuda` by default, `` for the CPU alone.
set -euo pipefail
prefix=${1:?usage: scripts/install_c.sh PREFIX [FEATURES]}
features=${2-cuda}
mkdir -p "$prefix"
prefix=$(cd "$prefix" && pwd)
cd "$(dirname "$0")/.."

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
major=$(sed -n 's/^#define TREFOIL_ABI_MAJOR //p' include/trefoil.h)
minor=$(sed -n 's/^#define TREFOIL_ABI_MINOR //p' include/trefoil.h)

# The crate type is asked for here and not in Cargo.toml, so that nobody who links trefoil from Rust links a shared
# library on the side. Its threads run until the process ends, so that dlclose() must not take the code from under them.
cargo rustc --release --locked --lib --no-default-features --features "ffi${features:+,$features}" \
    --crate-type cdylib,staticlib -- -C "link-arg=-Wl,-soname,libtrefoil.so.$major,-z,nodelete"
built=${CARGO_TARGET_DIR:-target}/release

install -d "$prefix/lib/pkgconfig" "$prefix/include"
install -m 755 "$built/libtrefoil.so" "$prefix/lib/libtrefoil.so.$major.$minor"
ln -sf "libtrefoil.so.$major.$minor" "$prefix/lib/libtrefoil.so.$major"
ln -sf "libtrefoil.so.$major" "$prefix/lib/libtrefoil.so"
install -m 644 "$built/libtrefoil.a" "$prefix/lib/libtrefoil.a"
install -m 644 include/trefoil.h include/trefoil.hpp "$prefix/include/"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" include/trefoil.pc.in >"$prefix/lib/pkgconfig/trefoil.pc"
echo "installed trefoil $version, interface $major.$minor, in $prefix"
