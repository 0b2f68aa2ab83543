#!/usr/bin/env bash
# Runs the C and C++ programs of tests/c and examples/ on the CPU, with a sanitizer of the compiler in the programs and in the
# library: scripts/sanitize_c.sh address|thread [PROGRAM...]. PROGRAMS are file names, without their endings.
# Needs gcc, g++, and nightly Rust with its sources: rustup toolchain install nightly --component rust-src
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:?expected address or thread}
shift
case $kind in
address) build_std=() runtime=asan ;;
thread) build_std=(-Zbuild-std) runtime=tsan ;; # as in sanitize_host.sh
*) echo "expected address or thread, found $kind" >&2 && exit 64 ;;
esac
host=x86_64-unknown-linux-gnu
work=target/$kind/c
mkdir -p "$work"

library=$(RUSTFLAGS="-Zsanitizer=$kind" cargo +nightly rustc --locked --lib --no-default-features --features ffi \
    --crate-type staticlib "${build_std[@]}" --target $host --target-dir "target/$kind" \
    --message-format json-render-diagnostics | grep -o '"[^"]*/libtrefoil\.a"' | tr -d '"' | sort -u)
# Rust links the sanitizer into executables alone; the programs need the one that the library was made for, not gcc's.
runtime=$(rustc +nightly --print sysroot)/lib/rustlib/$host/lib/librustc-nightly_rt.$runtime.a

# Pictures as tests/c_abi.rs makes them, and a network of images that is small.
python3 - "$work" <<'END'
import json, pathlib, shutil, sys
work = pathlib.Path(sys.argv[1])
def picture(name, magic, width, height, at):
    pixels = bytes(value for y in range(height) for x in range(width) for value in at(x, y))
    (work / name).write_bytes(f"{magic}\n{width} {height}\n255\n".encode() + pixels)
picture("gray.pgm", "P5", 28, 28, lambda x, y: [(28 * y + x) * 7 % 251])
picture("colour.ppm", "P6", 32, 32, lambda x, y: [((32 * y + x) * 3 + c) * 7 % 251 for c in range(3)])
picture("photo.ppm", "P6", 128, 64, lambda x, y: [255 * (32 <= x < 48 and 16 <= y < 32)] * 3)
picture("line.ppm", "P6", 56, 24, lambda x, y: [255 * (x // 8 >> bit & 1) for bit in range(3)])
of, to = pathlib.Path("weights/efficientnet-lite0"), work / "small"
to.mkdir(exist_ok=True)
config = json.loads((of / "config.json").read_text())
config["pretrained_cfg"]["input_size"] = [3, 32, 32]
(to / "config.json").write_text(json.dumps(config))
shutil.copy(of / "model.safetensors", to)
END

# What std keeps for a thread's life is no leak, nor what a program leaves to its end.
export ASAN_OPTIONS=detect_leaks=1 TSAN_OPTIONS=halt_on_error=0:exitcode=66
asked=" $* " ran=0 failed=()
run() { # FILE ARGUMENT...
    local file=$1 name
    shift
    name=$(basename "${file%.*}")
    [[ $asked == "  " || $asked == *" $name "* ]] || return 0
    case $file in
    *.c) gcc -std=c11 -fsanitize="$kind" -O1 -g -Iinclude -c "$file" -o "$work/$name.o" ;;
    *) g++ -std=c++17 -fsanitize="$kind" -O1 -g -Iinclude -c "$file" -o "$work/$name.o" ;;
    esac
    g++ "$work/$name.o" "$library" -Wl,--whole-archive "$runtime" -Wl,--no-whole-archive -lpthread -ldl -lm -lrt \
        -o "$work/$name"
    ran=$((ran + 1))
    # Without random addresses, of which some kernels use more bits than ThreadSanitizer knows.
    if timeout 600 setarch -R "$work/$name" "$@" >"$work/$name.txt" 2>&1; then
        echo "$name: nothing found"
    else
        failed+=("$name")
        grep -m 4 -A 12 "ERROR: \|WARNING: " "$work/$name.txt" || tail -5 "$work/$name.txt"
        echo "$name: failed, see $work/$name.txt"
    fi
}
run tests/c/misuse.c weights/convnet28
run tests/c/values.c tests/data/onnx/values.onnx weights/convnet28
run tests/c/records.c tests/data/onnx/records.onnx tests/data/onnx/tokens.onnx
run tests/c/threads.c weights/convnet28 weights/convnet28 4 20
run tests/c/wrapper.cpp weights/convnet28 conv3 "$work/timeline.json" tests/data/onnx/values.onnx
run examples/c/classify.c weights/convnet28 "$work/gray.pgm" cpu
run examples/c/interop.c weights/convnet28 cpu 4
run examples/cpp/decoder_threads.cpp "$work/small" 2 $(printf "$work/colour.ppm %.0s" {1..40})
run examples/cpp/detect.cpp tests/data/onnx/boxes.onnx "$work/photo.ppm"
run examples/cpp/read_text.cpp tests/data/onnx/text.onnx "$work/line.ppm" width=160
echo "$kind: $ran programs, ${#failed[@]} failed"
[ "$ran" -gt 0 ] && [ ${#failed[@]} = 0 ]
