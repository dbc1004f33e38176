#!/usr/bin/env bash
# aiperf against Octavo's OpenAI endpoint: 200 streamed chats at concurrency 16, prompts of 128 tokens, answers of 32.
#
#     octavo serve --model models/smollm2                              # in another terminal
#     benchmarks/aiperf.sh [MODEL_FOLDER [URL]]
#
# The environment, 1.2 GB, is made on the first run. Ends with a status other than 0 when a request failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

model=${1:-models/smollm2}
url=${2:-http://127.0.0.1:8000}
environment=.cache/clients/aiperf
results=.cache/clients/aiperf-results

if [[ ! -f $environment/.installed ]]; then
    python3.11 -m venv --clear "$environment"
    "$environment/bin/python" -m pip install -q --only-binary=:all: aiperf==0.13.0
    touch "$environment/.installed"
fi

name=$(curl -fsS "$url/v1/models" | "$environment/bin/python" -c 'import json, sys; print(json.load(sys.stdin)["data"][0]["id"])')
rm -rf "$results"
# ignore_eos: every answer is as long as asked for, so that runs compare. The tokenizer only counts.
"$environment/bin/aiperf" profile \
    --model "$name" --tokenizer "$(realpath "$model")" --url "$url" --endpoint-type chat --streaming \
    --request-count 200 --concurrency 16 --random-seed 6 \
    --synthetic-input-tokens-mean 128 --synthetic-input-tokens-stddev 0 --output-tokens-mean 32 \
    --extra-inputs ignore_eos:true --extra-inputs temperature:0 \
    --use-server-token-count --ui none --artifact-dir "$results"

"$environment/bin/python" - "$results" <<'PYTHON'
import json, pathlib, sys

(summary,) = pathlib.Path(sys.argv[1]).rglob("profile_export_aiperf.json")
found = json.loads(summary.read_text())
completed, failed = found["request_count"]["avg"], (found.get("error_request_count") or {"avg": 0})["avg"]
print(f"{completed:.0f} requests completed, {failed:.0f} failed")
sys.exit(completed != 200 or failed != 0)
PYTHON
