#!/usr/bin/env bash
# Builds the C library and installs it with its headers and its pkg-config file:
#   scripts/install_c.sh PREFIX [FEATURES]
# FEATURES are those of the library that are wanted: `cuda` by default, `` for the CPU alone. With DESTDIR set, the
# files go to DESTDIR/PREFIX, for a package that is unpacked at / later.
set -euo pipefail
prefix=${1:?usage: scripts/install_c.sh PREFIX [FEATURES]}
features=${2-cuda}
case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac
to=${DESTDIR-}$prefix
cd "$(dirname "$0")/.."

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
major=$(sed -n 's/^#define TREFOIL_ABI_MAJOR //p' include/trefoil.h)
minor=$(sed -n 's/^#define TREFOIL_ABI_MINOR //p' include/trefoil.h)

# The crate type is asked for here and not in Cargo.toml, so that nobody who links trefoil from Rust links a shared
# library on the side. Its threads run until the process ends, so that dlclose() must not take the code from under them.
# What was built is what cargo says it built, wherever its configuration has it put.
built=$(cargo rustc --release --locked --lib --no-default-features --features "ffi${features:+,$features}" \
    --crate-type cdylib,staticlib --message-format json-render-diagnostics \
    -- -C "link-arg=-Wl,-soname,libtrefoil.so.$major,-z,nodelete" |
    grep -o '"[^"]*/libtrefoil\.\(so\|a\)"' | tr -d '"' | sort -u)
library=$(grep '\.so$' <<<"$built")
archive=$(grep '\.a$' <<<"$built")

install -d "$to/lib/pkgconfig" "$to/include"
install -m 755 "$library" "$to/lib/libtrefoil.so.$major.$minor"
ln -sf "libtrefoil.so.$major.$minor" "$to/lib/libtrefoil.so.$major"
ln -sf "libtrefoil.so.$major" "$to/lib/libtrefoil.so"
install -m 644 "$archive" "$to/lib/libtrefoil.a"
install -m 644 include/trefoil.h include/trefoil.hpp "$to/include/"
quoted=$(sed 's/[&|\\]/\\&/g' <<<"$prefix")
sed -e "s|@PREFIX@|$quoted|" -e "s|@VERSION@|$version|" include/trefoil.pc.in >"$to/lib/pkgconfig/trefoil.pc"
echo "installed trefoil $version, interface $major.$minor, in $to"
