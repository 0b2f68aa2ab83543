#!/usr/bin/env bash
# Soaks a GPU beside other work: `trefoil bench soak` in the background, with its output in a file.
#
#   soak.sh start SECONDS LOG [OPTION...]   starts it and returns; OPTIONs are those of `bench soak`
#   soak.sh wait LOG                        waits for its end and prints its output; the exit code is its own
#   soak.sh stop LOG                        ends it early, with a report of what was done, and does the same
#
# Beside the log are LOG.json, the record, and LOG.pid and LOG.code. The GPU's memory and the latency are also those of the
# other work: what grows of them says nothing while that work begins or ends.
set -euo pipefail
usage() { sed -n '2,/^set/{/^#/{s/^# \{0,1\}//;p}}' "$0" >&2; exit 64; }
here=$(cd "$(dirname "$0")" && pwd)
trefoil=$here/bin/trefoil
[ -x "$trefoil" ] || trefoil=$here/../target/release/trefoil
verb=${1:-}
case $verb in
start)
    [ $# -ge 3 ] || usage
    seconds=$2 log=$(realpath -m "$3")
    shift 3
    [[ " $* " == *" --threads "* ]] || set -- --threads 16 "$@" # which leave the GPU to others too
    periods=$((seconds / 20 > 9 ? seconds / 20 : 9))
    rm -f "$log" "$log".{json,pid,code}
    # A session of its own: it goes on when whoever started it ends.
    setsid bash -c '"$@" & echo $! >"$0.pid"; code=0; wait $! || code=$?; echo $code >"$0.code"' "$log" \
        "$trefoil" bench soak --seconds "$seconds" --periods "$periods" --record "$log.json" "$@" \
        >"$log" 2>&1 </dev/null &
    for _ in {1..50}; do [ -s "$log.pid" ] && break || sleep 0.1; done
    echo "soaking for $seconds s in $periods periods, process $(cat "$log.pid"), log $log"
    ;;
wait | stop)
    [ $# = 2 ] || usage
    log=$2
    [ "$verb" = wait ] || kill -INT "$(cat "$log.pid")" 2>/dev/null || true
    until [ -s "$log.code" ]; do
        kill -0 "$(cat "$log.pid")" 2>/dev/null || sleep 1
        [ -s "$log.code" ] || kill -0 "$(cat "$log.pid")" 2>/dev/null || { echo "it was killed" >>"$log"; echo 137 >"$log.code"; }
        sleep 0.5
    done
    cat "$log"
    exit "$(cat "$log.code")"
    ;;
*) usage ;;
esac
