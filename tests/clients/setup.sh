#!/usr/bin/env bash
# Environments of the clients that the contract suites run, under .cache/clients: tests/clients/setup.sh [NAME...]
#
# Names: openai litellm langchain grpclib reflection node; all of them without one. What is there already is left alone
# until its requirements change. Wants Python 3.11 with pip, and npm with Node 20 or newer for `node`.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(cd "$here/../.." && pwd)
python=${PYTHON:-$repository/.venv/bin/python}
environments=$repository/.cache/clients
mkdir -p "$environments"

# One at a time: test processes that run side by side ask for the same ones.
exec 9>"$environments/.lock"
flock 9

made() { # made DIRECTORY FILE: whether DIRECTORY was made from FILE as it is
    cmp -s "$2" "$1/.made-from"
}

for name in "${@:-openai litellm langchain grpclib reflection node}"; do
    for name in $name; do
        environment=$environments/$name
        if [[ $name == node ]]; then
            made "$environment" "$here/package.json" && continue
            rm -rf "$environment" && mkdir -p "$environment"
            cp "$here/package.json" "$environment/"
            (cd "$environment" && npm install --silent --no-audit --no-fund --no-package-lock)
            cp "$here/package.json" "$environment/.made-from"
            continue
        fi
        requirements=$here/requirements/$name.txt
        made "$environment" "$requirements" && continue
        rm -rf "$environment"
        "$python" -m venv --without-pip "$environment"
        "$python" -m pip --python "$environment/bin/python" install -q --no-compile -r "$requirements"
        if [[ $name == grpclib ]]; then
            mkdir "$environment/stubs"
            PATH="$environment/bin:$PATH" "$environment/bin/python" -m grpc_tools.protoc -I "$repository/protos" \
                --python_out "$environment/stubs" --grpclib_python_out "$environment/stubs" \
                octavo/gateway/v1/gateway.proto
        fi
        cp "$requirements" "$environment/.made-from"
    done
done
