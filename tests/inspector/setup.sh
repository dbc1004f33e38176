#!/usr/bin/env bash
# Chromium and its driver for the tests of the inspector page, from the distribution: tests/inspector/setup.sh
#
# Does nothing where both are there. Wants apt, as root or by a sudo that asks for no password; where that is not to be
# had it says so and ends with 1. Elsewhere put `chromium` and `chromedriver` on the path by other means.
set -euo pipefail

there() { command -v chromium >/dev/null && command -v chromedriver >/dev/null; }
refuse() {
    echo "tests/inspector/setup.sh: no chromium and chromedriver on the path, and $1" >&2
    exit 1
}

there && exit 0
command -v apt-get >/dev/null || refuse "no apt-get to install them with"
as_root=()
if [[ $(id -u) != 0 ]]; then
    sudo -n true 2>/dev/null || refuse "neither root nor a sudo without a password to install them with"
    as_root=(sudo -n)
fi
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@"; }
apt update || refuse "apt-get cannot update its lists"
apt install -y --no-install-recommends chromium chromium-driver >/dev/null || refuse "apt-get cannot install them"
there || refuse "the distribution's packages bring none"
