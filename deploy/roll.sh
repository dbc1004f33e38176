#!/usr/bin/env bash
# Replaces the workers of a service by the build and the settings of now, one by one: deploy/roll.sh SERVICE
#
# For each container that SERVICE has: one more is started beside it, and when that one is healthy the old one is stopped, which
# drains it, and removed. There are never fewer than before, and as many at the end. Streams that outlive the drain go on on the
# others. A new one that fails to start is removed again, and what is left of the old ones goes on.
#
#   SERVICE       model_worker or model_worker_cpu; others publish a port, which two containers cannot share
#   WAIT_SECONDS  what a new one may take until it is healthy (default: 600)
# Needs room for one worker more, on a GPU too. Project, files and variables are those of docker compose: .env, or
# COMPOSE_PROJECT_NAME, COMPOSE_FILE, COMPOSE_PROFILES and COMPOSE_ENV_FILES. One roll at a time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

SERVICE=${1:-}
WAIT_SECONDS=${WAIT_SECONDS:-600}

say() { printf '[roll %4ss] %s\n' "$SECONDS" "$*" >&2; }

# containers: the ids of the service's, one a line; those of `docker compose run` are nobody's replicas.
containers() {
    local ids
    ids=$(docker compose ps --all --quiet "$SERVICE") || return 1
    [ -z "$ids" ] || docker inspect --format '{{index .Config.Labels "com.docker.compose.oneoff"}} {{.Id}}' $ids | sed -n 's/^False //p'
}

# healthy ID: returns when it is; fails when it has ended, even if it is started again, or when its time is up.
healthy() {
    local deadline=$((SECONDS + WAIT_SECONDS)) status health restarts
    while [ "$SECONDS" -lt "$deadline" ]; do
        read -r status health restarts < <(
            docker inspect --format '{{.State.Status}} {{.State.Health.Status}} {{.RestartCount}}' "$1"
        )
        [ "$health" != healthy ] || return 0
        [ "$status" = running ] && [ "$restarts" = 0 ] || return 1
        sleep 1
    done
    return 1
}

# start_one KNOWN...: one container more than those. Its id is left in NEW, also where it could be made and not started.
start_one() {
    local failed=0 now
    docker compose up --detach --no-deps --no-recreate --no-build --scale "$SERVICE=$(($# + 1))" "$SERVICE" || failed=1
    now=$(containers)
    NEW=$(comm -13 <(printf '%s\n' "$@" | sort) <(sort <<<"$now"))
    [ "$(wc -w <<<"$NEW")" = 1 ] || { say "one more of $SERVICE was wanted, found: ${NEW:-none}"; NEW=; return 1; }
    return "$failed"
}

case $SERVICE in
model_worker*) ;;
*)
    sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac

old=$(containers)
mapfile -t OLD <<<"$old"
[ -n "$old" ] || { say "$SERVICE has no container: docker compose up -d"; exit 1; }
# Whatever ends this before the new one is healthy takes it away.
NEW=
trap '[ -z "$NEW" ] || docker rm --force "$NEW" >/dev/null' EXIT
for old in "${OLD[@]}"; do
    now=$(containers)
    mapfile -t known <<<"$now"
    start_one "${known[@]}"
    say "${NEW:0:12} starts"
    if ! healthy "$NEW"; then
        docker logs --tail 5 "$NEW" >&2
        say "${NEW:0:12} did not start and is removed; ${#known[@]} go on"
        exit 1
    fi
    say "${NEW:0:12} is healthy, ${old:0:12} drains"
    NEW=
    docker stop "$old" >/dev/null
    docker rm "$old" >/dev/null
done
say "${#OLD[@]} of $SERVICE replaced"
