"""A streamed completion over OpenAI's HTTP API: ``python over_http.py HOST PORT TOKENS PROMPT``. Prints the text."""

import http.client
import json
import sys

PATIENCE_SECONDS = 120.0


def main() -> None:
    host, port, tokens, prompt = sys.argv[1:]
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_SECONDS)
    body = {"model": "smollm2", "prompt": prompt, "max_tokens": int(tokens), "temperature": 0, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != http.client.OK:
        raise SystemExit(f"{answer.status}: {answer.read().decode()}")
    events = [line.removeprefix(b"data: ").strip() for line in answer if line.startswith(b"data: ")]
    if events.pop() != b"[DONE]":
        raise SystemExit("the stream has no end")
    sys.stdout.write("".join(json.loads(event)["choices"][0]["text"] for event in events))


if __name__ == "__main__":
    main()
