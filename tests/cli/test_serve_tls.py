"""``octavo serve`` whose gateway speaks TLS by its own settings: the command calls none of its services to be ready."""

import shutil
from pathlib import Path

import pytest
from authority import Authority
from byte_model import byte_model
from processes import ServiceProcess
from shown_serve import LISTENERS

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl"),
]


def test_a_gateway_that_speaks_tls_is_found_ready_and_shown_as_it_is(tmp_path: Path) -> None:
    """Addresses are shown with the scheme that is spoken, and the inspector's only where it is served."""
    certificate, key = Authority(tmp_path, ["gateway"]).files["gateway"]
    environ = {
        "OCTAVO_GATEWAY_TLS_CERTIFICATE": str(certificate),
        "OCTAVO_GATEWAY_TLS_KEY": str(key),
        "OCTAVO_GATEWAY_INSPECT": "false",
    }
    flags = [f"--{name}=0" for name in LISTENERS]
    model = byte_model(tmp_path / "model")
    command = ("cli.main", "serve", f"--model={model}", "--num-blocks=16", "--threads=1", *flags)
    with ServiceProcess(*command, environ=environ) as serving:
        ready = serving.wait_ready().ready
        assert ready["service"] == "octavo"
        serving.wait_log("Ctrl-C drains everything")
        shown = "\n".join(serving.log)
        assert f"https://{ready['http']}/v1" in shown
        assert "-plaintext" not in shown
        assert "/inspect" not in shown
