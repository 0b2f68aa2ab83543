#!/usr/bin/env bash
# Fills .gpu/ with all that a machine with a GPU but without Rust needs: binaries, weights, photos, test data, scripts.
#
#   scripts/gpu_bundle.sh [--lib-tests] [--models FOLDER] [EXAMPLE...]
#
#   EXAMPLE        those of examples/ that are to be in it, as bin/EXAMPLE
#   --lib-tests    the library's own tests as well, as bin/lib_tests, with the kernels/ and src/ that they look at
#   --models       networks that scripts/onnx_models.py has downloaded, as models/
#
# Copy .gpu/ there and run .gpu/test.sh, or `. .gpu/env.sh` and then .gpu/sanitize.py, .gpu/poisoned.sh, .gpu/soak.sh or any
# of .gpu/bin/* and .gpu/benches/*. poisoned.sh needs a C compiler here. Ends with the sizes of what is in it.
set -euo pipefail
cd "$(dirname "$0")/.."
lib_tests=false models='' examples=(run_tensor in_turns) # which benches/ needs
while [ $# -gt 0 ]; do
    argument=$1
    shift
    case $argument in
        --lib-tests) lib_tests=true ;;
        --models)
            models=${1-}
            [ -f "$models/models.txt" ] || { echo "gpu_bundle.sh: no $models/models.txt" >&2; exit 64; }
            shift
            ;;
        -*) sed -n '2,/^set/{/^#/{s/^# \{0,1\}//;p}}' "$0" >&2; exit 64 ;;
        *)
            [ -f "examples/$argument.rs" ] || { echo "gpu_bundle.sh: no examples/$argument.rs" >&2; exit 64; }
            examples+=("$argument")
            ;;
    esac
done
fail() { echo "gpu_bundle.sh: $*" >&2; exit 1; }

# The path of a test binary, out of cargo's messages: KIND is `lib` or `test`.
test_binary() { # KIND CARGO_ARGUMENT...
    local kind=$1
    shift
    cargo test --release --locked --no-run --message-format=json-render-diagnostics "$@" | python3 -c '
import json, sys
messages = map(json.loads, sys.stdin)
built = [m["executable"] for m in messages if m.get("executable") and sys.argv[1] in m["target"]["kind"]]
print(*built[:1])' "$kind"
}

cargo build --release --locked --bins $(printf -- '--example %s ' "${examples[@]}")
target=$(cargo metadata --locked --no-deps --format-version 1 |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
gpu_tests=$(test_binary test --test gpu)
gpu_faults=$(test_binary test --test gpu_faults)
[ -n "$gpu_tests" ] && [ -n "$gpu_faults" ] || fail "cargo built no test binary for tests/gpu.rs or tests/gpu_faults.rs"

rm -rf .gpu
mkdir -p .gpu/bin .gpu/tests
cp "$target/release/trefoil" .gpu/bin/
for example in ${examples[@]+"${examples[@]}"}; do
    cp "$target/release/examples/$example" .gpu/bin/
done
cp "$gpu_tests" .gpu/bin/gpu_tests
cp "$gpu_faults" .gpu/bin/gpu_faults
if $lib_tests; then
    cp "$(test_binary lib --lib)" .gpu/bin/lib_tests
    cp -r kernels src .gpu/
fi
strip .gpu/bin/*
cp -r weights benches .gpu/
rm -rf .gpu/benches/records
[ ! -d tests/data ] || cp -r tests/data .gpu/tests/
find .gpu -name __pycache__ -prune -exec rm -rf {} +

commit=$(git describe --always --dirty --abbrev=12 --exclude='*')
cat >.gpu/env.sh <<END
# Source this before a binary or script of the bundle.
export TREFOIL_COMMIT=$commit
export TREFOIL_REQUIRE_GPU=1
if [ -d /usr/local/cuda/lib64 ]; then
    export LD_LIBRARY_PATH=/usr/local/cuda/lib64\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
fi
END
cat >.gpu/test.sh <<'END'
#!/usr/bin/env bash
# The GPU tests, then the demonstration. Arguments go to the tests: a filter, --list, …
set -euo pipefail
cd "$(dirname "$0")"
. ./env.sh
bin/gpu_tests "$@"
bin/gpu_faults
if [ -x bin/lib_tests ]; then
    bin/lib_tests
    bin/lib_tests --ignored memory_of_a_gpu
fi
bin/trefoil
END
if command -v "${CC:-cc}" >/dev/null; then
    mkdir .gpu/poisoned
    # The layer needs the driver's library by a name that poisoned.sh makes; here an empty one stands for it.
    "${CC:-cc}" -shared -fPIC -x c /dev/null -Wl,-soname,libcuda_real.so -o .gpu/poisoned/libcuda_real.so
    "${CC:-cc}" -O2 -Wall -Wextra -Werror -std=gnu11 -shared -fPIC scripts/poisoned_memory.c -o .gpu/poisoned/libcuda.so.1 \
        -Wl,-soname,poisoned_memory.so,-rpath,'$ORIGIN' -Wl,--no-as-needed -L.gpu/poisoned -l:libcuda_real.so -ldl
    rm .gpu/poisoned/libcuda_real.so
    cat >.gpu/poisoned.sh <<'END'
#!/usr/bin/env bash
# Runs a command with memory that is filled before use: poisoned.sh bin/gpu_tests. Its last line counts what was filled; see
# scripts/poisoned_memory.c.
set -euo pipefail
folder=$(cd "$(dirname "$0")" && pwd)/poisoned
real=$(ldconfig -p | sed -n 's/^\s*libcuda\.so\.1 .*x86-64.* => //p' | head -n 1)
[ -n "$real" ] || { echo "poisoned.sh: no libcuda.so.1 is known to ldconfig" >&2; exit 1; }
ln -sf "$(readlink -f "$real")" "$folder/libcuda_real.so"
ln -sf libcuda.so.1 "$folder/libcuda.so"
LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$@"
END
    chmod +x .gpu/poisoned.sh
fi
cp scripts/sanitize_gpu.py .gpu/sanitize.py
cp scripts/soak_gpu.sh .gpu/soak.sh
[ -z "$models" ] || cp -r "$models" .gpu/models
rm -rf .gpu/models/archives
chmod +x .gpu/test.sh

du -sh --apparent-size .gpu/* | sed 's/^/  /'
bytes=$(du -sb .gpu | cut -f1)
printf '.gpu: %.1f MiB, commit %s\n' "$(echo "$bytes" | awk '{print $1 / 1048576}')" "$commit"
