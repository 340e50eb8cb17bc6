#!/bin/sh
# Everything that benchmarks/decode.md says, again, on the GPU that is here: about eleven minutes on an H200.
#
#   sh benchmarks/reproduce_decode.sh OUT [SECONDS for the windows]
#
# Needs minfer, census, nsys and some 20 GB in MODELS (default /tmp), where the synthetic models are made. Checks come
# before times, and what takes longest comes last, so that an early end leaves the rest.
set -eu
out=$1 seconds=${2:-400} models=${MODELS:-/tmp}
mkdir -p "$out"
out=$(cd "$out" && pwd)
say() { echo "$(date -u +%H:%M:%S) $*" >&2; }

for size in 1.5b 7b 14b; do
    [ -e "$models/$size.gguf" ] || minfer synth "qwen2-$size" "$models/$size.gguf" >/dev/null
done
say "checks: oracles and bitwise switches on the GPU; greedy streams against the reports' path"
python3 -m pytest -q -m gpu tests/gpu/test_cuda_engine.py -s -p no:cacheprovider >"$out/tests.txt" 2>&1 ||
    say "tests failed: $out/tests.txt"
for size in 7b 14b; do
    minfer gate greedy "$models/$size.gguf" --switch MINFER_NO_STREAM --seeds 2 --margin 0.1 --json \
        >"$out/gate-$size.json" || say "gate not passed: $out/gate-$size.json"
done
say "speed"
for size in 7b 14b; do
    minfer bench "$models/$size.gguf" -p 0 -n 128 -r 5 -d 0,3254 -o jsonl >"$out/bench-$size.jsonl"
done
say "curves"
python3 benchmarks/decode_curves.py "$models/1.5b.gguf" "$models/7b.gguf" "$models/14b.gguf" -n 32 -r 2 \
    --out "$out/decode-curves.jsonl" || say "curves failed"
say "a recording and its ledger with each switch at 1, and with none"
for switch in none STREAM STREAM_QKV STREAM_GLU STREAM_ADD STREAM_NORM ONE_ATTENTION ATTENTION_QUADS DEPENDENT_LAUNCH \
    TOKEN_LOOP; do
    [ "$switch" = none ] && set_to=MINFER_NVTX=1 || set_to=MINFER_NO_$switch=1
    env "$set_to" nsys profile --trace=cuda,nvtx --cuda-graph-trace=node --sample=none --cpuctxsw=none -f true \
        --export sqlite -o "$models/step" minfer bench "$models/7b.gguf" -p 0 -n 8 -r 1 >/dev/null 2>&1
    census ledger "$models/step.sqlite" --json >"$out/ledger-$switch.json"
done
say "isolation windows"
sh benchmarks/windows.sh "$models/7b.gguf" 7b "$out/windows" "$seconds" 0 decode
