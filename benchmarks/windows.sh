#!/bin/sh
# Isolation windows of minfer's switches on a GPU: what `traces/windows/` holds and `census table` compares with the
# predictions that were made before.
#
#   sh benchmarks/windows.sh 7b.gguf 7b OUT [SECONDS] [DEPTH]
#
# Writes OUT/7b-d0-no-fuse-qkv.json and so on, one finished window each. A = fused (NAME=0), B = switched off (NAME=1).
# A switch is measured only when traces/predictions holds what was predicted for it.
# Pairs follow from the seconds given and from how long one run takes: 6 at least (fewer give no interval), 12 at most.
# Switches are taken in this order; one that no longer fits into the time is left out and named.
set -eu
model=$1 name=$2 out=$3 budget=${4:-250} depth=${5:-0}
predictions=$(cd "$(dirname "$0")/../traces/predictions" && pwd)
switches="DECODE_A_FUSE FUSE_QKV POS_MEMO WIDE_RMS KQ_MMVQ MMVQ"
tokens=64
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$model")" # the window holds the command: a bare file name, no path of this machine
bench="minfer bench $(basename "$model") -p 0 -n $tokens -d $depth -r 3 -o json --device cuda"
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
    need=$(((2 * pairs + 2) * run)) # a warm-up run of each arm
    stem=$name-d$depth-no-$(echo "$short" | tr '[:upper:]_' '[:lower:]-')
    [ -e "$out/$stem.json" ] && continue # finished in an earlier call
    if [ $(($(now) - start + need)) -gt $((budget * 1000)) ]; then
        echo "left out, no time: $short" >&2
        continue
    fi
    if [ ! -e "$predictions/$stem.json" ]; then
        echo "not predicted, so not measured: $stem (benchmarks/predict_switches.py)" >&2
        continue
    fi
    rm -rf "$out/.$stem"
    # Matmul routes round differently, so tokens may differ there; whether they do is in the window.
    census ab --cmd "$bench" --switch "MINFER_NO_$short" --pairs $pairs --seed 41 --warmup 1 --gap 0 --host-load 8 \
        --allow-different-output --out "$out/.$stem" >"$out/$stem.txt" || { tail -3 "$out/$stem.txt" >&2; continue; }
    mv "$out/.$stem/window.json" "$out/$stem.json"
    rm -rf "$out/.$stem"
    tail -1 "$out/$stem.txt" >&2
done
