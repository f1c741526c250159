"""What is said of columns of which a private choice of the scale saw too little (:mod:`dpdist.mechanisms.columns`)."""

from __future__ import annotations

from collections.abc import Sequence

from dpdist._util.text import counted, listed
from dpdist.naming import parameter
from dpdist.release.artefact import Heading


def blindly_scaled_words(found: Heading) -> str:
    """Name the columns of which no variance was seen, and those that weigh nothing; sentences, or nothing."""
    return words(*found.blindly_scaled)


def words(unseen: Sequence[str], weightless: Sequence[str]) -> str:
    """Name columns of which no variance was seen, and those that weigh nothing; sentences, or nothing."""
    said = []
    if unseen:
        said.append(
            f"No variance was seen, over the noise, of {counted(len(unseen), 'column')}, so "
            f"{'a public rule scaled it' if len(unseen) == 1 else 'public rules scaled them'}: {listed(unseen)}."
        )
    if weightless:
        said.append(
            f"{counted(len(weightless), 'column')} had numbers beyond 2^20, and weigh nothing: {listed(weightless)}. "
            f"Nothing is known of them. {cure()}"
        )
    return " ".join(said)


def blindly_scaled_json(found: Heading) -> dict[str, list[str]]:
    """Return the same as JSON values."""
    unseen, weightless = found.blindly_scaled
    return {"no_variance_seen": list(unseen), "weigh_nothing": list(weightless)}


def weightless(found: Heading, columns: Sequence[int]) -> tuple[int, ...]:
    """Return those of some columns that weigh nothing."""
    names = set(found.blindly_scaled[1])
    return tuple(i for i in columns if found.names[i] in names)


def cure() -> str:
    """Say what to do about columns that weigh nothing."""
    return f"Give them other units, or a public range ({parameter('schema')}), and release anew."
