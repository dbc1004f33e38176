#!/usr/bin/env bash
# Chromium and its driver for the tests of the inspector page, from the distribution: tests/inspector/setup.sh
#
# Does nothing where both are there. Wants apt, as root or by sudo; elsewhere put `chromium` and `chromedriver` on the
# path by other means.
set -euo pipefail
if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
    exit 0
fi
as_root=()
[[ $(id -u) == 0 ]] || as_root=(sudo)
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -qq -y --no-install-recommends chromium chromium-driver >/dev/null
