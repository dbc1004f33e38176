"""OpenAI's HTTP API as any client of HTTP sees it."""

import json
import urllib.error
import urllib.request
from typing import Any


class Http:
    """One address."""

    def __init__(self, address: str) -> None:
        self._base = f"http://{address}"

    def send(self, path: str, body: Any = None) -> tuple[int, bytes]:
        """Status and body of a GET, or of a POST of JSON."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def json(self, path: str, body: Any = None, status: int = 200) -> Any:
        found, answer = self.send(path, body)
        assert found == status, answer
        return json.loads(answer)

    def events(self, path: str, body: Any) -> list[Any]:
        """The JSON of each event of a stream, which ends with [DONE]."""
        status, answer = self.send(path, {**body, "stream": True})
        assert status == 200, answer
        events = [line.removeprefix("data: ") for line in answer.decode().split("\n\n") if line.startswith("data: ")]
        assert events.pop() == "[DONE]"
        return [json.loads(event) for event in events]
