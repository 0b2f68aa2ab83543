#!/usr/bin/env bash
# LoadGen drives the C library on the CPU, with Fashion-MNIST: its accuracy mode, Offline, Server. Fails unless all are
# valid, for durations far below the official ones. Installs what it needs below target/mlperf.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=target/mlperf

[ -x $work/venv/bin/pip ] || python3 -m venv $work/venv
$work/venv/bin/pip install --quiet --disable-pip-version-check --requirement benches/mlperf/requirements.txt
scripts/install_c.sh $work/prefix

run() {
    $work/venv/bin/python benches/mlperf/run.py "$@" --library $work/prefix/lib/libtrefoil.so --device cpu \
        --model weights/convnet28 --images tests/data/fashion-mnist-1000.idx3.gz \
        --labels tests/data/fashion-mnist-1000.labels.idx1.gz --batch 8 --producers 2 --log $work/log
}
run Offline --accuracy --at-least 0.94
run Offline --seconds 0.1 # no CPU takes less for the official 24,576 samples
run Server --seconds 3 --rate 300 --latency-ms 1000
run Server --seconds 3 --rate 300 --latency-ms 1000 --batcher
