#!/usr/bin/env bash
# A CA and the certificates of deploy/compose.tls.yml: deploy/certificates.sh FOLDER [NAME...]
#
#   NAME  a DNS name or an address that clients call the gateway by, beside gateway, localhost and 127.0.0.1
#   DAYS  how long the certificates hold (default: 365; the CA ten years)
# Writes ca.pem, and NAME.pem and NAME.key for kv_manager, model_worker, gateway and operator, who is for `octavo inspect` and its
# like. A CA that is in FOLDER already signs again, so a renewal leaves its clients alone: give it the same names, and ca.key where
# that is kept elsewhere. Services run as user 10001, so their keys are open to read; FOLDER is for its owner alone, and Docker
# mounts each file past it.
set -euo pipefail

[ $# -gt 0 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
DAYS=${DAYS:-365}
mkdir -p "$1"
chmod 700 "$1"
cd "$1"
shift

# quietly COMMAND...: what it says is told when it fails.
quietly() {
    local said
    said=$("$@" 2>&1) || { printf '%s\n' "$said" >&2; return 1; }
}

# request NAME OPTION...: a new key without a password, and what openssl makes of it.
request() {
    quietly openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$1.key.new" -subj "/CN=$1" "${@:2}"
}

# place NAME MODE: the new key, open as MODE says, and its certificate take the places of the old ones; who reads one now still has
# the pair.
place() {
    chmod "$2" "$1.key.new"
    chmod 644 "$1.pem.new"
    mv "$1.key.new" "$1.key"
    mv "$1.pem.new" "$1.pem"
}

# issue NAME MODE SUBJECT-ALTERNATIVE-NAMES
issue() {
    request "$1" -out "$1.csr"
    quietly openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days "$DAYS" \
        -extfile <(echo "subjectAltName=$3") -out "$1.pem.new"
    place "$1" "$2"
}

trap 'rm -f ./*.new ./*.csr' EXIT
if [ ! -e ca.key ]; then
    [ ! -e ca.pem ] || { echo "certificates.sh: ca.pem is here and its ca.key is not: bring it back to renew" >&2; exit 1; }
    request ca -x509 -days 3650 -addext keyUsage=critical,keyCertSign,cRLSign -out ca.pem.new
    place ca 600
fi
here=DNS:localhost,IP:127.0.0.1
called=DNS:gateway,$here
for name in "$@"; do
    if [[ $name == *:* || $name =~ ^[0-9]+(\.[0-9]+){3}$ ]]; then called+=,IP:$name; else called+=,DNS:$name; fi
done
issue gateway 644 "$called"
# Its port is published for this machine: `octavo inspect` calls it by these names too.
issue kv_manager 644 "DNS:kv_manager,$here"
issue model_worker 644 DNS:model_worker
issue operator 600 DNS:operator
