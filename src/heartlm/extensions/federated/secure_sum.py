"""Sums of hidden numbers: each client adds masks that cancel when all are added up (Bonawitz et al. 2017, CCS).

    client i sends  x_i + sum of m_ij over j > i - sum of m_ij over j < i   (mod 2**64)
    all together    the sum of x_i, to the last bit

A mask m_ij is a stream of ChaCha20 whose key two clients derive, by HKDF, from what X25519 gives them in common; so who
passes on their public keys does not know it. Keys are made for one round and then forgotten. All cryptography is that
of the package `cryptography`.

This is the protocol for those who are honest but curious, without recovery: masks of a client that announced a key and
then sent nothing do not cancel, and `RoundAbandoned` says so. The round must then be trained again. Sending the same
updates again under other masks would show the difference of two sums, which may be one client's update.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from heartlm.errors import HeartlmError

Ring = NDArray[np.int64]
"""Whole numbers modulo 2**64, written as int64."""


class RoundAbandoned(HeartlmError):  # noqa: N818
    """A sum of a round cannot be had, because a client whose masks are in it has ended."""


class MaskingClient:
    """One client's part in one masked sum.

    Args:
        name: unique in the round.
        private_key: 32 bytes that `private_bytes` gave, for a client that was put aside; by default a new key.

    Attributes:
        name: of the client.
        public_key: 32 bytes, for everybody.
    """

    def __init__(self, name: str, private_key: bytes | None = None) -> None:
        kind, self.name = X25519PrivateKey, name
        self._private_key = kind.generate() if private_key is None else kind.from_private_bytes(private_key)
        self.public_key = self._private_key.public_key().public_bytes_raw()

    def private_bytes(self) -> bytes:
        """The private key, known to this client alone."""
        return self._private_key.private_bytes_raw()

    def masked(self, numbers: Ring, public_keys: Mapping[str, bytes], context: bytes) -> Ring:
        """`numbers` under the masks that this client has in common with every other.

        Args:
            numbers: int64 `[n]`, which stay as they are.
            public_keys: of all clients of the sum, by name; this one's among them.
            context: what the sum is of, for example study and round; the same for all.

        Raises:
            HeartlmError: this client's own key is not among them as it made it, or it would be alone, so that its
                numbers would go out without a mask.
        """
        if public_keys.get(self.name) != self.public_key:
            raise HeartlmError(f"{self.name}: its own public key is not among those of the sum: the key was exchanged")
        if len(public_keys) < 2:
            raise HeartlmError(f"{self.name}: alone in a masked sum, which would show its update: two clients expected")
        masked = numbers.astype(np.uint64)
        for other, public_key in public_keys.items():
            if other == self.name:
                continue
            # Both names and both public keys decide the key of the mask that two clients share.
            both = sorted([(self.name.encode(), self.public_key), (other.encode(), public_key)])
            words = [b"heartlm masked sum", context, *(word for pair in both for word in pair)]
            info = b"".join(len(word).to_bytes(4, "big") + word for word in words)
            common = self._private_key.exchange(X25519PublicKey.from_public_bytes(public_key))
            key = HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(common)
            # A key is used once, so its nonce may be zero.
            stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * len(numbers)))
            mask = np.frombuffer(stream, "<u8").astype(np.uint64)
            # One of the two adds the mask, the other subtracts it; unsigned sums wrap around, so it cancels exactly.
            masked = masked + mask if self.name < other else masked - mask
        return masked.astype(np.int64)


def unmasked_sum(masked: Mapping[str, Ring], announced: Collection[str]) -> Ring:
    """The sum of what all clients masked, int64 `[n]`, modulo 2**64.

    Args:
        masked: what each sent, by name.
        announced: names of all whose public keys were given out.

    Raises:
        RoundAbandoned: somebody announced a key and sent nothing, or the other way round.
    """
    if odd := sorted(set(announced) ^ set(masked)):
        why = f"no key is known of {odd[0]}" if odd[0] in masked else f"{odd[0]} announced a key and sent nothing"
        raise RoundAbandoned(f"masks do not cancel: {why}; the round is abandoned and must be trained again")
    total = sum((each.astype(np.uint64) for each in masked.values()), start=np.uint64(0))
    return np.asarray(total, np.uint64).astype(np.int64)
