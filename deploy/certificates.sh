#!/usr/bin/env bash
# A CA and the certificates of deploy/compose.tls.yml: deploy/certificates.sh FOLDER [NAME...]
#
#   NAME  a DNS name or an address that clients call the gateway by, beside gateway, localhost and 127.0.0.1
#   DAYS  how long the certificates hold (default: 365; the CA ten years)
# Writes ca.pem, and NAME.pem and NAME.key for kv_manager, model_worker, gateway and operator, who is for `octavo inspect` and its
# like. A CA that is in FOLDER already signs again, so a renewal leaves its clients alone. Services run as user 10001, so keys but
# the CA's are open to read; FOLDER is for its owner alone, and Docker mounts each file past it.
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
    quietly openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$1.key" -subj "/CN=$1" "${@:2}"
}

# issue NAME SUBJECT-ALTERNATIVE-NAMES
issue() {
    request "$1" -out "$1.csr"
    quietly openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days "$DAYS" \
        -extfile <(echo "subjectAltName=$2") -out "$1.pem"
    rm "$1.csr"
    chmod 644 "$1.key" "$1.pem"
}

[ -e ca.key ] || request ca -x509 -days 3650 -out ca.pem
chmod 600 ca.key
chmod 644 ca.pem
here=DNS:localhost,IP:127.0.0.1
called=DNS:gateway,$here
for name in "$@"; do
    case $name in
    *:* | [0-9]*.[0-9]*.[0-9]*.[0-9]*) called+=,IP:$name ;;
    *) called+=,DNS:$name ;;
    esac
done
issue gateway "$called"
# Its port is published for this machine: `octavo inspect` calls it by these names too.
issue kv_manager "DNS:kv_manager,$here"
issue model_worker DNS:model_worker
issue operator DNS:operator
