#!/usr/bin/env bash
# Every benchmark on this machine's GPU, one after the other, with a record and a plot of each; a short table last.
#
#   benches/run.sh [-o FOLDER] [-m MODEL] [-q] [BENCHMARK...]
#
#   BENCHMARK    overlap, forum, clients, server: what to run (default: all four, about twelve minutes on an H200)
#   -o FOLDER    where records, plots and logs go (default: $OUT, else benches/records/DATE-COMMIT)
#   -m MODEL     the model of forum, clients and server (default: a ResNet-50 with random weights, made with torch,
#                or, where there is no torch, the default model)
#   -q           small and quick, for a first look
#
# TREFOIL: the program (default: bin/trefoil in a bundle, else target/release/trefoil). forum runs beside libtorch where
# torch is installed and has a GPU.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
fail() { echo "run.sh: $*" >&2; exit 1; }

out=${OUT:-} model="" quick=()
while getopts "o:m:qh" option; do
    case $option in
        o) out=$OPTARG ;;
        m) model=$OPTARG ;;
        q) quick=(--quick) ;;
        *) sed -n '2,/^set/{/^#/{s/^# \{0,1\}//;p}}' "$0" >&2; exit 64 ;;
    esac
done
shift $((OPTIND - 1))
names=("$@")
[ $# -gt 0 ] || names=(overlap forum clients server)
for name in "${names[@]}"; do
    case $name in overlap | forum | clients | server) ;; *) fail "no benchmark \`$name\`" ;; esac
done

[ ! -f "$root/env.sh" ] || . "$root/env.sh"
program=${TREFOIL:-$root/bin/trefoil}
[ -x "$program" ] || program=${CARGO_TARGET_DIR:-$root/target}/release/trefoil
[ -x "$program" ] || fail "no program at $program; build it, or name it in TREFOIL"
commit=${TREFOIL_COMMIT:-$(git -C "$root" describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || echo unknown)}
[ -n "$out" ] || out=$here/records/$(date -u +%F)-$commit
mkdir -p "$out"
torch=false
if python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then torch=true; fi

if [ -z "$model" ] && $torch; then
    model=${TMPDIR:-/tmp}/trefoil-models/resnet50
    [ -f "$model/config.json" ] || (cd "$here/peers" && python3 - "$model" <<'END'
import sys
import torch
import models
from images import photos_in, varied
from trefoil import ROOT
images = varied(photos_in(ROOT / "weights/photos"), models.CALIBRATION_IMAGES, models.SIZE, seed=1)
models.make("resnet50", sys.argv[1], images, torch.device("cuda:0"))
END
    )
fi
models=(${model:+--model "$model"})

status=0
for name in "${names[@]}"; do
    began=$SECONDS
    case $name in overlap) which=() ;; *) which=(${models[@]+"${models[@]}"}) ;; esac
    echo "== $name" >&2
    "$program" bench "$name" ${which[@]+"${which[@]}"} ${quick[@]+"${quick[@]}"} --record "$out/$name.json" \
        --plot "$out/$name.svg" >"$out/$name.log" 2>&1 || { status=1; echo "run.sh: $name failed:" >&2; tail -5 "$out/$name.log" >&2; }
    if [ "$name" = forum ] && $torch; then
        rounds=(); [ ${#quick[@]} -eq 0 ] || rounds=(--rounds 1 --seconds 0.5)
        python3 "$here/peers/forum/run.py" --bin "$(dirname "$program")" ${which[@]+"${which[@]}"} \
            ${rounds[@]+"${rounds[@]}"} --record "$out/forum-peers.json" >"$out/forum-peers.log" 2>&1 ||
            { status=1; echo "run.sh: the peer of forum failed:" >&2; tail -5 "$out/forum-peers.log" >&2; }
    fi
    echo "   $((SECONDS - began)) s" >&2
done
python3 "$here/summary.py" "$out"
exit $status
