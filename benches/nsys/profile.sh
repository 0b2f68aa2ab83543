#!/usr/bin/env bash
# Profiles a command with nsys and says how much of its copying lies under compute.
#
#   benches/nsys/profile.sh [option...] -- COMMAND [ARGUMENT...]
#
#   -o FOLDER    where the report goes (default: a new folder under /tmp, printed at the end)
#   -d FOLDER    holds libdw1_*.deb and libelf1_*.deb, for an nsys whose importer misses them
#   -t TRACE     graph (default): a CUDA graph is one span; node: every kernel, and a table of times by layer
#   -f FILE      with -t node: what `trefoil inspect --json` printed for the batch size; the table has its rooflines
#   -a PERCENT   exit code 1 if less of the copy time lies under compute, or the steady state is not clean
#
# NSYS_HOME: the folder that holds target-linux-x64/nsys. Default: the nsys on PATH, else the newest under
# /opt/nvidia/nsight-compute/*/host.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

usage() { sed -n '2,/^set/{/^#/{s/^# \{0,1\}//;p}}' "$0" >&2; exit 64; }
fail() { echo "profile.sh: $*" >&2; exit 1; }

out="" debs="" trace=graph at_least="" rooflines=""
while getopts "o:d:t:a:f:h" option; do
    case $option in
        o) out=$OPTARG ;;
        d) debs=$OPTARG ;;
        t) trace=$OPTARG ;;
        a) at_least=$OPTARG ;;
        f) rooflines=$OPTARG ;;
        *) usage ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || usage
case $trace in graph | node) ;; *) usage ;; esac

home=${NSYS_HOME:-}
if [ -z "$home" ] && ! nsys=$(command -v nsys); then
    home=$(ls -d /opt/nvidia/nsight-compute/*/host 2>/dev/null | sort -V | tail -1) || true
    [ -n "$home" ] || fail "no nsys on PATH or under /opt/nvidia/nsight-compute; name its folder in NSYS_HOME"
fi
[ -z "$home" ] || nsys=$home/target-linux-x64/nsys
[ -x "$nsys" ] || fail "no nsys at $nsys"

[ -n "$out" ] || out=$(mktemp -d /tmp/trefoil-nsys.XXXXXX)
mkdir -p "$out"
libraries=""
if [ -n "$debs" ]; then
    for deb in "$debs"/libdw1_*.deb "$debs"/libelf1_*.deb; do
        [ -f "$deb" ] || fail "no libdw1 and libelf1 packages in $debs"
        dpkg -x "$deb" "$out/libraries"
    done
    libraries=$(dirname "$(find "$out/libraries" -name 'libdw.so.1' | head -1)")
fi
with_libraries() { # FOLDERS COMMAND...: FOLDERS may be empty
    local path=$1${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    shift
    path=${path#:}
    env ${path:+LD_LIBRARY_PATH="$path"} "$@"
}

report=$out/report
rm -f "$report".nsys-rep "$report".qdstrm "$report".sqlite
started=$out/started
touch -d "1 second ago" "$started"
"$nsys" profile -t cuda,nvtx --cuda-graph-trace="$trace" --sample=none --cpuctxsw=none -f true -o "$report" "$@" ||
    echo "profile.sh: nsys or the command ended with code $?; going on with what was traced" >&2

if [ ! -f "$report".nsys-rep ]; then # an importer without its libraries leaves the raw stream behind
    raw=$(find "$out" /tmp -maxdepth 1 -name '*.qdstrm' -newer "$started" 2>/dev/null | head -1) || true
    [ -n "$raw" ] || fail "nsys left neither a report nor a raw stream"
    host=${home:-$(dirname "$(dirname "$(readlink -f "$nsys")")")}
    importer=$(ls "$host"/*/QdstrmImporter 2>/dev/null | head -1) || true
    [ -n "$importer" ] || fail "no QdstrmImporter beside nsys"
    with_libraries "$libraries:$(dirname "$importer")" "$importer" -i "$raw" -o "$report".nsys-rep \
        >"$out/import.log" 2>&1 || {
        tail -5 "$out/import.log" >&2
        fail "the import failed (libdw1 and libelf1: see -d)"
    }
fi
with_libraries "$libraries" "$nsys" export -t sqlite -f true -o "$report".sqlite "$report".nsys-rep \
    >"$out/export.log" 2>&1 || { tail -5 "$out/export.log" >&2; fail "the export failed"; }

echo "report: $report.nsys-rep"
overlap=0
python3 "$here/overlap.py" "$report".sqlite --json "$out/overlap.json" ${at_least:+--at-least "$at_least"} || overlap=$?
if [ "$trace" = node ]; then
    echo
    python3 "$here/layers.py" "$report".sqlite --json "$out/layers.json" ${rooflines:+--rooflines "$rooflines"} || [ $overlap -ne 0 ] || overlap=1
fi
exit $overlap
