#!/usr/bin/env bash
# Images and compose on a Docker engine that is started for it and taken down again: deploy/compose-test.sh MODEL_FOLDER
# [PYTEST ARGUMENTS]. Needs root, Debian and a network; says how long each part took, and what the images weigh.
#
#   PYTHON   the interpreter of the environment with octavo[dev] (default: .venv/bin/python)
#   ROUNDS   rounds of failures under load (default: 20); SEED repeats a run's
#   OLDER    the tag whose KV manager takes over from today's and gives back (default: protos-v1)
#   KEEP     when set, engine and services are left running: deploy/engine-up.sh down
# Wheels are fetched once, by pip as it is set up here, and handed to the builds: the CPU build of torch comes from where this
# machine's own came from. Images and wheels stay, for the next run; deploy/engine-up.sh purge takes the images.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-.venv/bin/python}
OLDER=${OLDER:-protos-v1}
WORKPLACE=$PWD/.cache/compose
MODEL=$(realpath "${1:?usage: deploy/compose-test.sh MODEL_FOLDER [PYTEST ARGUMENTS]}")
shift

PARTS=()
# part NAME COMMAND...: runs it, and notes how long it took.
part() {
    local name=$1 started=$SECONDS
    shift
    printf '== %s\n' "$name"
    "$@"
    PARTS+=("$(printf '%6d s  %s' $((SECONDS - started)) "$name")")
}

finish() {
    local status=$?
    trap - EXIT
    [ -n "${KEEP:-}" ] || part "engine down" deploy/engine-up.sh down
    [ ${#PARTS[@]} -eq 0 ] || printf '%s\n' "== how long it took" "${PARTS[@]}"
    [ "$status" = 0 ] && echo "== passed" || echo "== failed"
    exit "$status"
}

wheels() {
    mkdir -p "$WORKPLACE/wheels"
    "$PYTHON" deploy/requirements.py gateway,worker,cli,otel >"$WORKPLACE/requirements.txt"
    "$PYTHON" -m pip download -qq --python-version 3.11 --only-binary=:all: -d "$WORKPLACE/wheels" \
        -c constraints/cpu.txt -r "$WORKPLACE/requirements.txt" 'hatchling>=1.26'
    local cuda
    cuda=$(find "$WORKPLACE/wheels" -name 'nvidia_*' | head -n 1)
    [ -z "$cuda" ] || echo "   note: torch came as its CUDA build; PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS names a CPU build"
    du -sh "$WORKPLACE/wheels" | sed 's/^/   /'
}

build() { docker compose -p octavo-build -f docker-compose.yml -f tests/compose/docker-compose.yml --profile cpu build --quiet "$1"; }

# Today's Dockerfile around the sources of a tag.
build_older() {
    local sources=$WORKPLACE/$OLDER
    git rev-parse --quiet --verify "$OLDER^{commit}" >/dev/null || { echo "there is no tag $OLDER: git fetch --tags" >&2; return 1; }
    rm -rf "$sources"
    mkdir -p "$sources/deploy"
    git archive "$OLDER" | tar -x -C "$sources"
    cp .dockerignore "$sources/"
    cp deploy/requirements.py "$sources/deploy/"
    docker build --quiet -f kv_manager/Dockerfile --build-arg "BASE=$OCTAVO_BASE_IMAGE" \
        --build-context "wheels=$WORKPLACE/wheels" -t octavo/kv-manager:older "$sources" >/dev/null
}

megabytes() { echo $(($(docker image inspect --format '{{.Size}}' "$1") / 1000000)); }

weigh() {
    local base image
    base=$(megabytes "$OCTAVO_BASE_IMAGE")
    echo "   $OCTAVO_BASE_IMAGE: $base MB, uncompressed"
    for image in octavo/kv-manager octavo/gateway octavo/model-worker:cpu; do
        echo "   $image: $(($(megabytes $image) - base)) MB on top of it"
    done
}

trap finish EXIT
part "engine" deploy/engine-up.sh up
eval "$(deploy/engine-up.sh env)"
export OCTAVO_MODEL=$MODEL OCTAVO_BASE_IMAGE=python:3.11-slim OCTAVO_TEST_WHEELS=$WORKPLACE/wheels
part "wheels" wheels
part "image kv_manager" build kv_manager
part "image gateway" build gateway
part "image model_worker_cpu" build model_worker_cpu
part "image kv_manager of $OLDER" build_older
part "sizes" weigh
part "tests" "$PYTHON" -m pytest -m compose -s --durations=0 "${@:-tests/compose}"
