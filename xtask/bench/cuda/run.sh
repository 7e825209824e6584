#!/bin/sh
# Run on the GPU host, in the folder that `cargo xtask bench cuda` packed: `sh run.sh [checks] [sanitizers] [speeds]`, all three if
# none is named, prints what is checked and how fast it is, ours and others, as text. Written for an H200, which has 140 GB.
# MODELS is where the models of random weights are made, 37 GB of them; python3 needs numpy, and the peers torch with transformers
# and mlx-lm, or they are left out.
cd "$(dirname "$0")" || exit 1
models=${MODELS:-$PWD/models}
export MLXCEL_FIXTURES="$PWD/fixtures"
mlxcel="$PWD/mlxcel"
began=$(date +%s)
wanted="${*:-checks sanitizers speeds}"
mlx_cases="1b:1:16 8b:1:16 8b:64:16 8b:1:4"
torch_cases="1b:1 8b:1 8b:64"

for part in $wanted; do
    case $part in checks | sanitizers | speeds) ;; *) echo "$part is none of checks, sanitizers and speeds"; exit 1 ;; esac
done
[ -x "$mlxcel" ] && [ -x ./conformance ] || { echo "mlxcel and conformance are not beside this script"; exit 1; }

wants() {
    case " $wanted " in *" $1 "*) true ;; *) false ;; esac
}

section() {
    echo "## $1 (after $(($(date +%s) - began)) s)"
}

make_models() {
    for name in 1b 8b 8b-q4; do
        [ -e "$models/$name/config.json" ] || python3 model.py "$name" "$models/$name" &
    done
    wait
    [ -e "$models/1b/config.json" ] && [ -e "$models/8b/config.json" ] && [ -e "$models/8b-q4/config.json" ]
}

# What transformers answers, and what we do.
ask() {
    python3 oracle.py "$models/$1" "$1" || return 1
    ids=$(head -n 1 "$1.tokens" | tr ' ' ,)
    "$mlxcel" generate -m "$models/$1" --engine cuda --dtype f32 --prompt-tokens "$ids" --temp 0 -n 48 --ignore-eos --json > "$1.answer"
}

# The suite in so many parts, a process for each and as many at once as there are cores: most of a check is the reference's work,
# or a tool's, on one core. What comes before the suite may be a tool. One that crashes must not keep others from starting.
in_parts() {
    parts=$1
    shift
    rm -f part.*
    seq "$parts" | xargs -P "$cores" -I% sh -c '"$@" > part.% 2>&1 || exit 1' sh "$@" "--part=%/$parts"
    grep -h FAILED part.*
    sed -n 's/.*": \([0-9]*\) checks passed, \([0-9]*\) failed.*/\1 \2/p' part.* |
        awk -v parts="$parts" '{ passed += $1; failed += $2 }
            END { print passed + 0, "checks passed,", failed + 0, "failed;", NR, "of", parts, "parts ended" }'
}

cores=$(nproc)
[ "$cores" -le 16 ] || cores=16

if wants checks || wants speeds; then
    section "The device"
    "$mlxcel" devices --calibrate
    make_models || exit 1
fi

# While the checks run: what transformers answers, and what the peers compile, which they keep for when they are measured.
preparing=""
rm -f ./*.answer
if wants checks; then
    for name in 1b 8b; do
        ask $name > "$name.asked" 2>&1 &
        preparing="$preparing $!"
    done
fi
if wants speeds; then
    python3 mlx_peer.py $mlx_cases > mlx.compiled 2>&1 &
    preparing="$preparing $!"
    python3 torch_peer.py $torch_cases > torch.compiled 2>&1 &
    preparing="$preparing $!"
fi

if wants checks; then
    section "Conformance"
    in_parts "$cores" ./conformance
fi
[ -z "$preparing" ] || wait $preparing
if wants checks; then
    section "48 tokens of transformers in f32"
    for name in 1b 8b; do
        if [ -s "$name.answer" ]; then python3 judge.py "$name" "$name.answer"; else echo "left out:" && tail -n 3 "$name.asked"; fi
    done
fi

if wants sanitizers; then
    for tool in memcheck racecheck; do
        command -v compute-sanitizer > /dev/null || { echo "left out: there is no compute-sanitizer"; break; }
        section $tool
        in_parts $((4 * cores)) compute-sanitizer --tool $tool ./conformance --glance
        grep -h SUMMARY part.* | sort | uniq -c
    done
fi

if wants speeds; then
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
fi
section "The end"
