"""Masks: they cancel, they hide, and they are the key streams that the standards say."""

from __future__ import annotations

import hashlib
import hmac
import struct
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from support.tallies import FALSE_ALARM

from dpdist.core.noise.masks import KeySet, is_public_key, new_key, public_key

Words = npt.NDArray[np.uint64]


def key_set(sites: int, session: bytes = b"s" * 32) -> tuple[KeySet, list[bytes]]:
    secrets = [new_key() for _ in range(sites)]
    return KeySet(session, tuple(map(public_key, secrets))), secrets


def shares(sites: int, values: npt.NDArray[np.int64]) -> list[Words]:
    keys, secrets = key_set(sites)
    return [keys.masks(site, secrets[site]).mask(values).view(np.uint64) for site in range(sites)]


def uniform(words: Words) -> bool:
    """Whether words may be uniform: the counts of all bytes, and of the bits of each position."""
    octets = np.bincount(np.frombuffer(words.tobytes(), dtype=np.uint8), minlength=256)
    bits = np.unpackbits(np.frombuffer(words.tobytes(), dtype=np.uint8)).reshape(len(words), 64).sum(axis=0)
    apart = np.abs(bits - len(words) / 2) / np.sqrt(len(words) / 4)
    return bool(
        stats.chisquare(octets).pvalue > FALSE_ALARM / 2 and apart.max() < stats.norm.isf(FALSE_ALARM / 2 / 128)
    )


@pytest.mark.parametrize("sites", [2, 3, 5, 17])
def test_they_cancel_in_the_sum_of_all_shares_and_in_no_other(sites: int) -> None:
    values = np.random.default_rng(sites).integers(-(2**40), 2**40, 2000)
    masked = shares(sites, values)
    total = np.sum(masked, axis=0, dtype=np.uint64)
    np.testing.assert_array_equal(total.view(np.int64), sites * values)
    for missing in range(sites):
        others = [share for site, share in enumerate(masked) if site != missing]
        assert uniform(np.sum(others, axis=0, dtype=np.uint64))


def test_any_four_of_five_shares_are_uniform_together() -> None:
    masked = shares(5, np.zeros(20_000, dtype=np.int64))
    for count in range(1, 5):
        for some in combinations(masked, count):
            assert uniform(np.sum(some, axis=0, dtype=np.uint64))
            for one, other in combinations(some, 2):
                assert uniform(one ^ other)
    assert not uniform(np.sum(masked, axis=0, dtype=np.uint64))  # all five say what they hide
    assert not uniform(np.random.default_rng(1).integers(-(2**30), 2**30, 20_000).view(np.uint64))


def test_they_are_the_same_in_bands_as_at_once() -> None:
    keys, secrets = key_set(3)
    values = np.arange(5_000_000)
    at_once = keys.masks(1, secrets[1]).mask(values)
    masks = keys.masks(1, secrets[1])
    np.testing.assert_array_equal(at_once, np.concatenate([masks.mask(part) for part in np.split(values, 5)]))
    assert (values == np.arange(5_000_000)).all()  # the sums themselves are left as they are


def chacha_block(key: bytes, counter: int) -> bytes:
    """RFC 8439, 2.3, in plain Python."""

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[x] = (state[x] + state[y]) & 0xFFFFFFFF
            mixed = state[z] ^ state[x]
            state[z] = ((mixed << turn) | (mixed >> (32 - turn))) & 0xFFFFFFFF

    start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter, 0, 0, 0]
    state = list(start)
    for _ in range(10):
        for indices in (
            (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
            (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
        ):  # fmt: skip
            quarter(*indices)
    return struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(state, start, strict=True)))


def ladder(scalar: bytes, point: int) -> int:
    """RFC 7748, 5, in plain Python."""
    p = 2**255 - 19
    k = int.from_bytes(scalar, "little") & ~(7 | 1 << 255) | 1 << 254
    x2, z2, x3, z3, swap = 1, 0, point, 1, 0
    for t in range(254, -1, -1):
        bit = (k >> t) & 1
        if swap ^ bit:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swap = bit
        a, b, c, d = (x2 + z2) % p, (x2 - z2) % p, (x3 + z3) % p, (x3 - z3) % p
        da, cb, aa, bb = d * a % p, c * b % p, a * a % p, b * b % p
        e = (aa - bb) % p
        x3, z3, x2, z2 = (da + cb) ** 2 % p, point * (da - cb) ** 2 % p, aa * bb % p, e * (aa + 121665 * e) % p
    if swap:
        x2, z2 = x3, z3
    return x2 * pow(z2, p - 2, p) % p


def test_a_mask_is_what_the_standards_say_of_x25519_hkdf_and_chacha20() -> None:
    keys, secrets = key_set(2)
    base = ladder(secrets[1], 9).to_bytes(32, "little")
    assert base == keys.keys[1]
    agreed = ladder(secrets[0], int.from_bytes(base, "little") & ~(1 << 255)).to_bytes(32, "little")
    digest = hashlib.sha256(b"dpdist keys/1\n" + b"s" * 32 + b"".join(keys.keys)).digest()
    extracted = hmac.digest(digest, agreed, "sha256")
    cipher_key = hmac.digest(extracted, b"dpdist mask/1" + b"\0\0\0\1" + b"\1", "sha256")
    stream = b"".join(chacha_block(cipher_key, counter) for counter in range(25))
    words = np.frombuffer(stream, dtype="<u8")
    zeros = np.zeros(200, dtype=np.int64)
    np.testing.assert_array_equal(keys.masks(0, secrets[0]).mask(zeros).view(np.uint64), words)
    np.testing.assert_array_equal(keys.masks(1, secrets[1]).mask(zeros).view(np.uint64), np.uint64(0) - words)


def test_another_session_or_another_key_of_anybody_changes_every_mask() -> None:
    keys, secrets = key_set(3)
    zeros = np.zeros(100, dtype=np.int64)
    first = keys.masks(0, secrets[0]).mask(zeros)
    other_session = KeySet(b"t" * 32, keys.keys)
    third = KeySet(keys.session, (*keys.keys[:2], public_key(new_key())))
    for changed in (other_session, third):
        assert changed.fingerprint != keys.fingerprint
        assert not (changed.masks(0, secrets[0]).mask(zeros) == first).any()


def test_a_fingerprint_is_eight_groups_of_four() -> None:
    groups = key_set(3)[0].fingerprint.split("-")
    assert [len(group) for group in groups] == [4] * 8
    assert "".join(groups).isalnum()  # five bits in each, and no padding


def test_a_public_key_of_small_order_is_none() -> None:
    assert is_public_key(public_key(new_key()))
    assert not is_public_key(bytes(32))
    assert not is_public_key(b"\1" + bytes(31))
    assert not is_public_key(bytes(5))
