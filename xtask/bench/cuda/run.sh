#!/bin/sh
# Run on the GPU host, in the folder that `cargo xtask bench cuda` packed: checks and speeds, ours and others, as text, in
# about ten minutes. Written for an H200, which has 140 GB. MODELS is where the models of random weights are made, 37 GB of them;
# python3 needs numpy, and the peers torch with transformers and mlx-lm, or they are left out.
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

# While the checks run: what transformers answers, and what the peers compile, which they keep for when they are measured.
prepare() {
    for name in 1b 8b 8b-q4; do
        [ -e "$models/$name/config.json" ] || python3 model.py "$name" "$models/$name" || return 1
    done
    for name in 1b 8b; do
        python3 oracle.py "$models/$name" "$name" && answer "$name" > "$name.answer"
    done
    python3 mlx_peer.py $mlx_cases
    python3 torch_peer.py $torch_cases
}

answer() {
    ids=$(head -n 1 "$1.tokens" | tr ' ' ,)
    "$mlxcel" generate -m "$models/$1" --engine cuda --dtype f32 --prompt-tokens "$ids" --temp 0 -n 48 --ignore-eos --json
}

mlx_cases="1b:1:16 8b:1:16 8b:64:16 8b:1:4"
torch_cases="1b:1 8b:1 8b:64"
rm -f ./*.answer
prepare > prepared.txt 2>&1 &
preparing=$!

section "Conformance"
# Most of a check is the reference's work, on one core.
parts=$(nproc)
[ "$parts" -le 16 ] || parts=16
rm -f part.*
running=""
for part in $(seq "$parts"); do
    ./conformance "--part=$part/$parts" > "part.$part" 2>/dev/null &
    running="$running $!"
done
wait $running
grep -h FAILED part.*
sed -n 's/.*": \([0-9]*\) checks passed, \([0-9]*\) failed.*/\1 \2/p' part.* |
    awk -v parts="$parts" '{ passed += $1; failed += $2 }
        END { print passed, "checks passed,", failed, "failed;", NR, "of", parts, "parts ended" }'

# The whole suite takes a sanitizer more than five minutes, also in parts.
for tool in memcheck racecheck; do
    command -v compute-sanitizer > /dev/null || break
    section $tool
    compute-sanitizer --tool $tool ./conformance Norm Paged "bf16 of" wide 2>&1 | grep -E "SUMMARY|checks passed"
done

wait $preparing
[ -e "$models/8b-q4/config.json" ] || { cat prepared.txt; exit 1; }
section "48 tokens of transformers in f32"
for name in 1b 8b; do
    if [ -s "$name.answer" ]; then python3 judge.py "$name" "$name.answer"; else echo "left out:" && tail -n 3 prepared.txt; fi
done

section "From the start to the first token, 8B"
"$mlxcel" generate -m "$models/8b" --engine cuda --prompt-tokens 5,42,79,116 --temp 0 -n 1 --ignore-eos --json

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
python3 mlx_peer.py $mlx_cases
section "transformers, compiled"
python3 torch_peer.py $torch_cases
section "The end"
