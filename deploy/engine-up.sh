#!/usr/bin/env bash
# A private Docker engine for tests, on a Debian machine that has none: deploy/engine-up.sh [up|env|down|purge]
#
#   up      start it, and make the base images that nobody has to pull (default)
#   env     print what a caller exports:  eval "$(deploy/engine-up.sh env)"
#   down    remove what is in it, stop it by its process id, take its network rules away
#   purge   down, and delete ENGINE_DIR with all images
#
# Needs root and a package mirror; no systemd. The mirror is the one that apt uses already.
#   ENGINE_DIR      where everything lies (default: octavo-engine in the temporary folder). Short and without spaces, since
#                   it holds unix sockets
#   ENGINE_PYTHONS  Python versions of the base images (default: 3.11)
#   ENGINE_SUITE    Debian suite of the engine, newer than the machine's own (default: trixie)
#   ENGINE_NICE     niceness of the engine and of every container (default: 0)
set -euo pipefail

DIR=${ENGINE_DIR:-${TMPDIR:-/tmp}/octavo-engine}
PYTHONS=${ENGINE_PYTHONS:-3.11}
SUITE=${ENGINE_SUITE:-trixie}
CLI=$DIR/cli
PID_FILE=$DIR/docker.pid
export DOCKER_HOST=unix://$DIR/docker.sock DOCKER_CONFIG=$DIR/config
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
# The machine's own docker command, if it has one, and everything else from the engine's folder.
export PATH=$PATH:$CLI/usr/bin:$CLI/usr/sbin:/usr/sbin:/sbin
NICE=(nice -n "${ENGINE_NICE:-0}")

say() { printf '[engine %4ss] %s\n' "$SECONDS" "$*" >&2; }

# fail LOG MESSAGE...: the log's last lines, then why.
fail() {
    [ ! -f "$1" ] || tail -20 "$1" >&2
    shift
    say "$*"
    exit 1
}

alive() { [ -s "$PID_FILE" ] && [ "$(cat "/proc/$(cat "$PID_FILE")/comm" 2>/dev/null)" = dockerd ]; }

suite_here() { (. /etc/os-release && echo "${VERSION_CODENAME:-}"); }

# The first mirror that apt knows for this machine's own suite.
mirror() {
    apt-get indextargets --format '$(SITE)' 'Created-By: Packages' "Codename: $(suite_here)" 2>/dev/null | head -n 1
}

requirements() {
    [ "$(id -u)" = 0 ] || fail "" "needs root: it mounts file systems and makes network bridges"
    [ -n "$(suite_here)" ] && command -v apt-get >/dev/null || fail "" "needs a Debian machine: the engine comes by apt"
    [ -w /sys/fs/cgroup ] || fail "" "needs a writable cgroup file system: a container without privileges has none"
}

# What the engine calls, from the machine's own suite.
install_helpers() {
    local missing=() name
    for name in containerd runc iptables debootstrap; do
        command -v "$name" >/dev/null || missing+=("$name")
    done
    [ -e /usr/bin/tini-static ] || missing+=(tini)
    [ ${#missing[@]} -gt 0 ] || return 0
    say "apt: ${missing[*]}"
    apt-get -qq update >"$DIR/apt.log" 2>&1 || fail "$DIR/apt.log" "apt-get update failed: is there a network?"
    "${NICE[@]}" apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${missing[@]}" >>"$DIR/apt.log" 2>&1 ||
        fail "$DIR/apt.log" "cannot install ${missing[*]}"
}

# Engine, buildx and compose, unpacked beside the system from a newer suite by an apt state of its own.
unpack_engine() {
    [ ! -x "$CLI/usr/sbin/dockerd" ] || [ ! -x "$DOCKER_CONFIG/cli-plugins/docker-compose" ] || return 0
    say "engine and compose from $SUITE"
    local apt=$DIR/apt package
    rm -rf "$apt"
    mkdir -p "$apt/etc" "$apt/lists/partial" "$apt/debs" "$CLI" "$DOCKER_CONFIG/cli-plugins"
    printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' \
        "$(mirror)" "$SUITE" /usr/share/keyrings/debian-archive-keyring.gpg >"$apt/etc/engine.sources"
    local options=(-o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$apt/etc"
        -o "Dir::State::Lists=$apt/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root)
    apt-get -qq "${options[@]}" update >"$DIR/apt.log" 2>&1 || fail "$DIR/apt.log" "cannot read $SUITE: is there a network?"
    (cd "$apt/debs" && apt-get -qq "${options[@]}" download docker.io docker-cli docker-compose docker-buildx) \
        >>"$DIR/apt.log" 2>&1 || fail "$DIR/apt.log" "cannot download the engine"
    for package in "$apt"/debs/*.deb; do dpkg-deb -x "$package" "$CLI"; done
    cp -f "$CLI"/usr/libexec/docker/cli-plugins/* "$DOCKER_CONFIG/cli-plugins/"
    ln -sf /usr/bin/tini-static "$CLI/usr/bin/docker-init" # what "init: true" runs
    rm -rf "$apt"
}

start() {
    if alive && docker version >/dev/null 2>&1; then
        say "already up"
        return
    fi
    rm -f "$PID_FILE" "$DIR/docker.sock"
    # Docker takes 1500 whatever the way out allows: packets larger than that one's would be lost.
    local device mtu
    device=$(ip -o route show default | sed -n 's/.* dev \([^ ]*\).*/\1/p' | head -n 1)
    mtu=$(cat "/sys/class/net/${device:-lo}/mtu")
    [ "$mtu" -le 9000 ] || mtu=1500
    [ -e "$DIR/ip_forward.before" ] || cat /proc/sys/net/ipv4/ip_forward >"$DIR/ip_forward.before"
    say "dockerd"
    setsid nohup "${NICE[@]}" dockerd --data-root "$DIR/data" --exec-root "$DIR/exec" --pidfile "$PID_FILE" \
        --host "$DOCKER_HOST" --mtu "$mtu" --default-network-opt "bridge=com.docker.network.driver.mtu=$mtu" \
        >"$DIR/dockerd.log" 2>&1 </dev/null &
    local attempt
    for attempt in $(seq 150); do
        docker version >/dev/null 2>&1 && break
        sleep 0.2
    done
    [ "$attempt" -lt 150 ] || fail "$DIR/dockerd.log" "dockerd does not answer after 30 s"
    say "engine $(docker version --format '{{.Server.Version}}'), storage $(docker info --format '{{.Driver}}'), $(docker compose version)"
}

# debian:SUITE-slim by debootstrap, and python:X-slim on it: nothing is pulled from a registry of images.
base_images() {
    local debian version
    debian=debian:$(suite_here)-slim
    docker image inspect "$debian" >/dev/null 2>&1 || make_debian "$debian"
    for version in $PYTHONS; do
        docker image inspect "python:$version-slim" >/dev/null 2>&1 || make_python "$debian" "$version"
    done
}

make_debian() {
    local image=$1 root=$DIR/rootfs
    say "$image by debootstrap"
    rm -rf "$root"
    "${NICE[@]}" debootstrap --variant=minbase \
        --include=ca-certificates,libssl3,libffi8,libsqlite3-0,libreadline8,libbz2-1.0,liblzma5,zlib1g,libuuid1,libncursesw6,libexpat1,libtirpc3 \
        "$(suite_here)" "$root" "$(mirror)" >"$DIR/debootstrap.log" 2>&1 || fail "$DIR/debootstrap.log" "debootstrap failed"
    # A build that goes out through the machine's own certificates must trust them, and pip be told.
    cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/" 2>/dev/null || true
    chroot "$root" update-ca-certificates >/dev/null 2>&1
    printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\ntimeout = 180\n' >"$root/etc/pip.conf"
    tar -C "$root" --exclude='./var/cache/apt/*.bin' --exclude='./var/cache/apt/archives/*.deb' \
        --exclude='./var/lib/apt/lists/*' --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' \
        --exclude='./usr/share/locale/*' -c . |
        docker import --change 'CMD ["bash"]' --change 'ENV LANG=C.UTF-8' \
            --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' - "$image" >/dev/null
    rm -rf "$root"
}

make_python() {
    local debian=$1 version=$2 context=$DIR/python-$2 prefix
    rm -rf "$context"
    mkdir -p "$context/python"
    prefix=$(ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version".* 2>/dev/null | sort -V | tail -n 1)
    if [ -n "$prefix" ]; then
        say "python:$version-slim from this machine's ${prefix##*/}"
        tar -C "$prefix" --exclude=__pycache__ --exclude="lib/python$version/test" --exclude="lib/python$version/idlelib" \
            --exclude='*.a' --exclude="lib/python$version/site-packages/*" -c bin/python3 "bin/python$version" include lib |
            tar -C "$context/python" -x
        cat >"$context/Dockerfile" <<END
FROM $debian
COPY python/ /usr/local/
RUN ln -sf python3 /usr/local/bin/python && ldconfig && python3 -m ensurepip --default-pip >/dev/null 2>&1 && pip --version
CMD ["python3"]
END
    elif [ "$(suite_here)-$version" = bookworm-3.11 ]; then
        say "python:$version-slim from Debian's python3"
        cat >"$context/Dockerfile" <<END
FROM $debian
RUN apt-get -qq update && apt-get -qq install -y --no-install-recommends python3 python3-pip python3-venv \
    && rm -rf /var/lib/apt/lists/* /usr/lib/python3*/EXTERNALLY-MANAGED && ln -s /usr/bin/python3 /usr/local/bin/python
CMD ["python3"]
END
    else
        fail "" "no CPython $version on this machine to make python:$version-slim from"
    fi
    docker build --progress=plain -t "python:$version-slim" "$context" >"$DIR/python-$version.log" 2>&1 ||
        fail "$DIR/python-$version.log" "python:$version-slim cannot be built"
    rm -rf "$context"
}

up() {
    mkdir -p "$DIR"
    requirements
    install_helpers
    unpack_engine
    start
    base_images
}

down() {
    if alive; then
        local containers pid attempt
        containers=$(docker ps -aq)
        [ -z "$containers" ] || docker rm -fv $containers >/dev/null
        docker network prune -f >/dev/null
        docker volume prune -af >/dev/null 2>&1 || true
        pid=$(cat "$PID_FILE")
        kill "$pid"
        for attempt in $(seq 150); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.2
        done
    fi
    local mount
    for mount in "$DIR"/exec/netns/* "$DIR/data"; do umount "$mount" 2>/dev/null || true; done
    take_network_away
    say "down"
}

# dockerd leaves its bridge, its chains, a FORWARD policy of DROP and ip_forward=1 behind.
take_network_away() {
    ip link del docker0 2>/dev/null || true
    local table rule chain
    for table in nat filter; do
        iptables -w -t "$table" -S 2>/dev/null | sed -nE '/^-A .*(DOCKER|docker0|br-[0-9a-f]{12})/s/^-A/-D/p' |
            while read -r rule; do iptables -w -t "$table" $rule 2>/dev/null || true; done || true
        for chain in $(iptables -w -t "$table" -S 2>/dev/null | sed -n 's/^-N \(DOCKER[^ ]*\)$/\1/p'); do
            iptables -w -t "$table" -F "$chain"
            iptables -w -t "$table" -X "$chain" 2>/dev/null || true
        done
    done
    iptables -w -P FORWARD ACCEPT 2>/dev/null || true
    if [ -e "$DIR/ip_forward.before" ]; then
        cat "$DIR/ip_forward.before" >/proc/sys/net/ipv4/ip_forward
        rm -f "$DIR/ip_forward.before"
    fi
}

case ${1:-up} in
up) up ;;
env) printf 'export DOCKER_HOST=%q DOCKER_CONFIG=%q PATH="$PATH:"%q\n' "$DOCKER_HOST" "$DOCKER_CONFIG" "$CLI/usr/bin" ;;
down) [ ! -d "$DIR" ] || down ;;
purge)
    [ -e "$DIR/dockerd.log" ] || exit 0
    down
    rm -rf "$DIR"
    ;;
*)
    sed -n '2,14s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
