#!/bin/sh
# Run on the GPU host, in the folder that `cargo xtask bench cuda` packed: checks and speeds, ours and others, as text, in
# about ten minutes. MODELS is where the models of random weights are made, 37 GB of them; python3 needs numpy, and the peers
# torch with transformers and mlx-lm, or they are left out.
cd "$(dirname "$0")" || exit 1
models=${MODELS:-$PWD/models}
export MLXCEL_FIXTURES="$PWD/fixtures"
mlxcel="$PWD/mlxcel"
began=$(date +%s)

section() {
    echo "## $1 (after $(($(date +%s) - began)) s)"
}

section "The device"
"$mlxcel" devices --calibrate

# While the checks run.
for name in 1b 8b 8b-q4; do
    [ -e "$models/$name/config.json" ] || python3 model.py "$name" "$models/$name" || exit 1
done &
making=$!

# Most of a check is the reference's work, on one core.
parts=$(nproc)
[ "$parts" -le 14 ] || parts=14

suite() {
    section "$1"
    shift
    running=""
    for part in $(seq "$parts"); do
        "$@" ./conformance "--part=$part/$parts" > "part.$part" 2>&1 &
        running="$running $!"
    done
    wait $running
    grep -h FAILED part.*
    sed -n 's/.*": \([0-9]*\) checks passed, \([0-9]*\) failed.*/\1 \2/p' part.* |
        awk '{ passed += $1; failed += $2 } END { print passed, "checks passed,", failed, "failed;", NR, "parts ended" }'
    grep -h "SUMMARY" part.* | sort | uniq -c
}

suite "Conformance"
if command -v compute-sanitizer > /dev/null; then
    suite "memcheck" compute-sanitizer --tool memcheck
    suite "racecheck" compute-sanitizer --tool racecheck
fi

wait $making || exit 1
section "Ours"
"$mlxcel" bench -m "$models/1b" --engine cuda -p 2048 -n 128 -d 128 -r 3
"$mlxcel" bench -m "$models/8b-q4" --engine cuda -p 2048 -n 128 -d 128 -r 3
"$mlxcel" bench -m "$models/8b" --engine cuda -p 2048 -n 256 -d 128 -b 1,64,256 -r 3
"$mlxcel" bench -m "$models/8b" --engine cuda -p 0 -n 64 -d 32000 -r 3

section "256 clients"
"$mlxcel" serve -m "$models/8b" --engine cuda -c 1024 --parallel 256 --queue 512 --port 8123 &
server=$!
until curl -s http://127.0.0.1:8123/health > /dev/null; do sleep 1; kill -0 $server || exit 1; done
"$mlxcel" bench serve --url http://127.0.0.1:8123/v1 --clients 256 --requests 768 --max-tokens 128 --input-words 30 --ignore-eos
kill $server
wait $server

section "MLX"
python3 mlx_peer.py 1b:1:16 8b:1:16 8b:64:16 8b:1:4
section "transformers, compiled"
python3 torch_peer.py 1b:1 8b:1 8b:64
section "The end"
