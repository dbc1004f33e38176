"""API keys: read from a call, found by their SHA-256 without a comparison whose time tells anything."""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping

from gateway.tenancy.tenant import Tenant

AUTHORIZATION = "authorization"
# The second is Azure's.
API_KEYS = ("x-api-key", "api-key")

HEADERS = (AUTHORIZATION, *API_KEYS)

# Keys are drawn at random by whoever runs the gateway: far below this, and hashing one costs a microsecond.
MAX_KEY_BYTES = 512


def key_of(headers: Mapping[str, str]) -> str | None:
    """The key that a call carries; None without one.

    Args:
        headers: HTTP headers or gRPC metadata, names in lower case.
    """
    scheme, _, key = headers.get(AUTHORIZATION, "").strip().partition(" ")
    if scheme.lower() == "bearer":
        return key.strip() or None
    return next((key for name in API_KEYS if (key := headers.get(name, "").strip())), None)


def digest_of(key: str) -> bytes:
    """SHA-256 of a key, as the tenants file holds it. A slow hash is for passwords; a key is 32 random bytes."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


class KeyIndex:
    """Finds the tenant of a key.

    A dictionary compares byte by byte, so its time tells how far two digests agree. Here it is keyed by the digests'
    HMAC under a secret of this process, where nobody can aim at an agreement. What is found is compared in constant
    time.
    """

    def __init__(self, tenants: Iterable[Tenant]) -> None:
        self._secret = secrets.token_bytes(32)
        self._tenants = {self._blind(digest): (digest, tenant) for tenant in tenants for digest in tenant.key_digests}

    def find(self, key: str) -> Tenant | None:
        """The tenant of a key, None when nobody has it."""
        if len(key) > MAX_KEY_BYTES:
            return None
        digest = digest_of(key)
        held, tenant = self._tenants.get(self._blind(digest), (b"", None))
        return tenant if hmac.compare_digest(held, digest) else None

    def _blind(self, digest: bytes) -> bytes:
        return hmac.digest(self._secret, digest, "sha256")
