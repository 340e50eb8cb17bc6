#!/bin/sh
# Isolation windows of minfer's switches on a GPU.
#
#   sh benchmarks/windows.sh 7b.gguf 7b OUT [SECONDS] [DEPTH] [reports|decode]
#
# reports: the reports' switches, on their own path (MINFER_NO_STREAM=1): what `traces/windows/` holds and `census table`
# compares with the predictions in traces/predictions. decode: the steps of benchmarks/decode.md, predicted in
# benchmarks/decode_predictions.json; what `traces/decode/` holds.
# Writes OUT/7b-d0-no-fuse-qkv.json and so on, one finished window each. A = fused (NAME=0), B = switched off (NAME=1).
# A switch is measured only when something was predicted for it.
# Pairs follow from the seconds given and from how long one run takes: 6 at least (fewer give no interval), 12 at most.
# Switches are taken in this order; one that no longer fits into the time is left out and named.
set -eu
model=$1 name=$2 out=$3 budget=${4:-250} depth=${5:-0} steps=${6:-reports}
here=$(cd "$(dirname "$0")" && pwd)
if [ "$steps" = reports ]; then
    switches="DECODE_A_FUSE FUSE_QKV POS_MEMO WIDE_RMS KQ_MMVQ MMVQ" both="MINFER_NO_STREAM=1" tokens=64 reps=3
    predicted() { [ -e "$here/../traces/predictions/$1.json" ]; }
else
    switches="STREAM DEPENDENT_LAUNCH ONE_ATTENTION STREAM_GLU STREAM_NORM STREAM_QKV STREAM_ADD ATTENTION_QUADS TOKEN_LOOP"
    both="MINFER_NVTX=0" tokens=${TOKENS:-192} reps=${REPS:-3} # enough work to be seen by polls a second apart
    predicted() { grep -q "\"MINFER_NO_$2\"" "$here/decode_predictions.json"; }
fi
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$model")" # the window holds the command: a bare file name, no path of this machine
bench="minfer bench $(basename "$model") -p 0 -n $tokens -d $depth -r $reps -o json --device cuda"
now() { echo $(($(date +%s%N) / 1000000)); } # ms
start=$(now)
$bench >/dev/null # fills the file cache and the kernel cache: not timed
first=$(now)
$bench >/dev/null
run=$(($(now) - first))
left=$((budget * 1000 - ($(now) - start)))
pairs=$((left / (2 * run * 6)))
pairs=$((pairs / 2 * 2))
[ "$pairs" -ge 6 ] || pairs=6
[ "$pairs" -le 12 ] || pairs=12
echo "one run takes $run ms: $pairs pairs per switch" >&2
for short in $switches; do
    need=$((2 * pairs * run)) # no warm-up: the runs above filled the caches
    stem=$name-d$depth-no-$(echo "$short" | tr '[:upper:]_' '[:lower:]-')
    [ -e "$out/$stem.json" ] && continue # finished in an earlier call
    if [ $(($(now) - start + need)) -gt $((budget * 1000)) ]; then
        echo "left out, no time: $short" >&2
        continue
    fi
    if ! predicted "$stem" "$short"; then
        echo "not predicted, so not measured: $stem" >&2
        continue
    fi
    rm -rf "$out/.$stem"
    # Matmul routes round differently, so tokens may differ there; whether they do is in the window.
    census ab --cmd "$bench" --switch "MINFER_NO_$short" --env "$both" --pairs $pairs --seed 41 --warmup 0 --gap 0 \
        --host-load 8 --allow-different-output --out "$out/.$stem" >"$out/$stem.txt" || { tail -3 "$out/$stem.txt" >&2; continue; }
    mv "$out/.$stem/window.json" "$out/$stem.json"
    rm -rf "$out/.$stem"
    tail -1 "$out/$stem.txt" >&2
done
