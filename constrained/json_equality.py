"""JSON values as JSON equality sees them: 1 is 1.0, members have no order, strings are their characters."""

from __future__ import annotations

Number = tuple[bool, bytes, int]
Content = bytes | Number | tuple["Value", ...] | frozenset[tuple[bytes, "Value"]]


class Value:
    """A JSON value as JSON equality sees it. Equal values are one object; made by `Follower` only."""

    __slots__ = ("__weakref__", "content", "kind")

    def __init__(self, kind: str, content: Content) -> None:
        self.kind = kind  # "literal", "number", "string", "array", "object"
        self.content = content

    def elements(self) -> tuple[Value, ...] | None:
        """The elements of an array, None for all else."""
        return self.content if self.kind == "array" else None  # type: ignore[return-value]  # by its kind

    def members(self) -> frozenset[tuple[bytes, Value]] | None:
        """(key, value) pairs of an object, None for all else."""
        return self.content if self.kind == "object" else None  # type: ignore[return-value]  # by its kind

    def string(self) -> bytes | None:
        """What a string says, None for all else."""
        return self.content if self.kind == "string" else None  # type: ignore[return-value]  # by its kind

    def digits(self) -> bytes:
        """The digits of a number, without zeros around them."""
        assert isinstance(self.content, tuple)
        return self.content[1]  # type: ignore[return-value]  # by its kind


def number(text: bytes) -> Number:
    """The number that `text` spells: (is negative, digits without zeros around them, power of ten)."""
    mantissa, _, power = text.lower().partition(b"e")
    whole, _, fraction = mantissa.lstrip(b"-").partition(b".")
    digits = (whole + fraction).lstrip(b"0")
    short = digits.rstrip(b"0")
    if not short:
        return False, b"", 0
    # Python reads at most 4300 digits; numbers whose exponents have more are taken for equal.
    return text[:1] == b"-", short, int(power[:4000] or 0) - len(fraction) + len(digits) - len(short)


def with_unit(text: bytes, unit: int) -> bytes:
    """`text` and one more UTF-16 unit; the second half of a character joins the first."""
    if 0xDC00 <= unit <= 0xDFFF and len(stem(text)) < len(text):
        high = ord(text[-3:].decode("utf-8", "surrogatepass"))
        return text[:-3] + chr(0x10000 + ((high & 0x3FF) << 10) + (unit & 0x3FF)).encode()
    return text + chr(unit).encode("utf-8", "surrogatepass")


def stem(text: bytes) -> bytes:
    """`text` without the first half of a surrogate pair at its end, whose second half may come."""
    is_half = len(text) >= 3 and text[-3] == 0xED and 0xA0 <= text[-2] <= 0xAF
    return text[:-3] if is_half else text


def may_become(text: bytes, value: Value) -> bool:
    """Whether the beginning `text` of a scalar may be completed to `value`; True where that is not plain to see."""
    if value.kind == "literal":
        assert isinstance(value.content, bytes)
        return value.content.startswith(text)
    if value.kind != "number" or text[:1].isalpha():
        return False
    digits = value.digits()
    mantissa = text.lower().partition(b"e")[0]
    begun = mantissa.lstrip(b"-").replace(b".", b"").lstrip(b"0")
    return digits.startswith(begun) or begun.rstrip(b"0") == digits


def alike_number(text: bytes) -> bytes:
    """One beginning of a number for all that go on to be the same numbers, or as many others.

    Zeros that change nothing are left out, and of a long run of zeros in a fraction all but three.
    """
    mantissa, mark, power = text.lower().partition(b"e")
    whole, point, fraction = mantissa.partition(b".")
    short = fraction.rstrip(b"0")
    mantissa = whole + point + fraction[: len(short) + 3]
    if not mark:
        return mantissa
    if not mantissa.strip(b"-0."):
        return b"0e"
    sign = power[:1] if power[:1] in (b"+", b"-") else b""
    return mantissa + mark + sign + power[len(sign) :].lstrip(b"0")
