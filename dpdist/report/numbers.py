"""Numbers as they stand on a page of HTML: few digits, and powers of ten as people write them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal

from markupsafe import Markup


def common_power(values: Iterable[float]) -> int:
    """Return p, a multiple of 3, by whose power of ten the numbers of a table are divided to have few digits.

    Examples
    --------
    >>> common_power([9.66e8, -3.0]), common_power([1500.0]), common_power([2e-4, 0.0]), common_power([])
    (6, 0, -6, 0)
    """
    largest = max(map(abs, values), default=0.0)
    return 0 if not largest or 1e-2 <= largest < 1e4 else 3 * math.floor(math.log10(largest) / 3)


def in_units(power: int) -> Markup:
    """Say by what the numbers of a table were divided.

    Examples
    --------
    >>> print(in_units(6))
    , in 10<sup>6</sup>
    >>> print(in_units(0) or "plain")
    plain
    """
    return Markup(f", in 10<sup>{digits(power)}</sup>" if power else "")  # noqa: S704 - of a number


def digits(value: float) -> str:
    """Write a number with four significant digits and no exponent.

    Examples
    --------
    >>> digits(966.245), digits(-16.0355), digits(12346.0), digits(1e-5), digits(0.0)
    ('966.2', '−16.04', '12350', '0.00001', '0')
    """
    return f"{Decimal(f'{value:.4g}'):f}".replace("-", "\N{MINUS SIGN}")


def number(value: float) -> Markup:
    """Write one number with four significant digits, and a power of ten where it is large or small.

    Examples
    --------
    >>> print(number(1814.0), number(1.814e10), number(1e-06), sep="; ")
    1814; 1.814 × 10<sup>10</sup>; 10<sup>−6</sup>
    """
    if not value or 1e-4 <= abs(value) < 1e6:
        return Markup(digits(value))  # noqa: S704 - of a number
    front, _, power = f"{value:.3e}".partition("e")
    before = "" if float(front) == 1 else f"{digits(float(front))} \N{MULTIPLICATION SIGN} "
    return Markup(f"{before}10<sup>{digits(int(power))}</sup>")  # noqa: S704 - of a number
