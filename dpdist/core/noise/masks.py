"""Masks modulo 2^64 that cancel in the sum of all shares, from one secret key per site and session.

Each pair of sites i < j agrees on a key by X25519. HKDF-SHA256 derives a cipher key from it, with a digest of the whole
session (its terms and the public keys of all sites) and the numbers of the two sites. The key stream of ChaCha20, as
little-endian 64-bit integers, one for each entry, is added to the share of site i and subtracted from that of site j.

**Theorem.** Let an adversary have the secret keys of some sites, all public keys and all shares. If two or more sites
are honest, he learns of their sums nothing but the sum over all honest sites, unless he distinguishes the key streams
of honest pairs from uniform ones.

*Proof.* Take the masks between honest sites as uniform and independent; those with other sites he can subtract. Number
the honest sites 1..k. The mask between sites 1 and j > 1 is added to share j with one sign, and no other honest share
but the first contains it. So shares 2..k are uniform and independent, whatever their sums are, and the first is the sum
of all honest ones less these. This has the same law for all tables with the same noisy sum over honest sites. ∎ Any
set of shares that lacks one honest share is uniform, as seen by those without its mask.

**Assumptions.** Diffie-Hellman on Curve25519 with a hashed secret, HKDF as a pseudorandom function and ChaCha20 as a
pseudorandom generator: guarantees before the sum are computational, that of the sum is not. The public keys must be
those of the sites: those who carry files could insert their own, which comparing fingerprints detects. If a
cipher is broken later, each share still has its own noise (:mod:`dpdist.core.mechanisms.noise_share`).

**Once.** Two shares under one mask differ by the change of the rows and fresh noise only. So a secret key belongs to
one site, one session and one table, and makes one share (:mod:`dpdist.core.release.share`). All key streams of a
session change with any public key, because its digest is an input.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dpdist.core.noise.entropy import SYSTEM, Words
from dpdist.core.triangle import Triangle

KEY_BYTES = 32
_BLOCK = 1 << 20  # words of a key stream in memory
_SHOWN_BYTES = 20  # of a fingerprint: a pair of key sets with the same one takes 2^80 attempts


def new_key() -> bytes:
    """Return a new secret key, from the kernel's generator."""
    return SYSTEM.words(KEY_BYTES // 8).tobytes()


def public_key(secret: bytes) -> bytes:
    """Return the public key of a secret one."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def is_public_key(key: bytes) -> bool:
    """Return whether a public key is one: with a point of small order, every agreed key is zero."""
    try:
        X25519PrivateKey.from_private_bytes(bytes([1]) * KEY_BYTES).exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class KeySet:
    """The public keys of all sites of a session, in the order of the sites."""

    session: bytes  # digest of its terms
    keys: tuple[bytes, ...]

    @property
    def digest(self) -> bytes:
        """SHA-256 of the session and all keys."""
        return hashlib.sha256(b"dpdist keys/1\n" + self.session + b"".join(self.keys)).digest()

    @property
    def fingerprint(self) -> str:
        """The digest as people compare it: eight groups of four letters and digits."""
        text = base64.b32encode(self.digest[:_SHOWN_BYTES]).decode()
        return "-".join(text[start : start + 4] for start in range(0, len(text), 4))

    def masks(self, site: int, secret: bytes) -> Masks:
        """Return the masks of a site, whose keys were checked by :func:`is_public_key`."""
        own = X25519PrivateKey.from_private_bytes(secret)
        streams = []
        for other, key in enumerate(self.keys):
            if other != site:
                pair = min(site, other).to_bytes(2, "big") + max(site, other).to_bytes(2, "big")
                derivation = HKDF(SHA256(), KEY_BYTES, salt=self.digest, info=b"dpdist mask/1" + pair)
                agreed = derivation.derive(own.exchange(X25519PublicKey.from_public_bytes(key)))
                streams.append((site < other, Cipher(algorithms.ChaCha20(agreed, bytes(16)), mode=None).encryptor()))
        return Masks(streams)


class Masks:
    """The key streams of one site, each used from its start to its end, once."""

    def __init__(self, streams: Sequence[tuple[bool, CipherContext]]) -> None:
        self._streams = streams

    def mask(self, values: Triangle) -> Triangle:
        """Return the next entries plus their masks, modulo 2^64."""
        masked: Words = values.astype(np.int64).view(np.uint64)
        for start in range(0, masked.size, _BLOCK):
            block = masked[start : start + _BLOCK]
            for added, stream in self._streams:
                words = np.frombuffer(stream.update(bytes(8 * block.size)), dtype="<u8")
                (np.add if added else np.subtract)(block, words, out=block)
        return masked.view(np.int64)
