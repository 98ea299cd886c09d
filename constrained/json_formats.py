"""The formats of JSON Schema that are enforced: as regular expressions, or as rules where they are not regular.

Names mean the same in every draft. Formats that no draft defines (``int32``, ``byte`` and the like are OpenAPI's)
are unknown, and so annotations. Sources: JSON Schema Validation 2020-12, section 7.3, and the standards it names.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .code_points import CodePoints
from .errors import UnsupportedGrammarError
from .json_options import JsonOptions
from .json_regex_format import regex_rules
from .rules import Node, Rules


@dataclass(frozen=True, slots=True)
class Format:
    """A format that is a regular language.

    Attributes:
        pattern: Python ``re`` syntax, to be matched in full; classes, groups and quantifiers only.
        max_length: the most characters a whole text has, where `pattern` alone does not say so.
    """

    pattern: str
    max_length: int | None = None


# Dates and times: RFC 3339. The year 0000, which RFC 3339 has but most calendars have not, is left out; so are leap
# seconds at most offsets from UTC (see `_leap_seconds`).

_YEAR = "(?:[1-9][0-9]{3}|0(?:[1-9][0-9]{2}|0(?:[1-9][0-9]|0[1-9])))"
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"
_LEAP_YEAR = f"(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)"
_DAY_28 = "0[1-9]|1[0-9]|2[0-8]"
_MONTH_DAY = f"(?:02-(?:{_DAY_28})|(?:0[469]|11)-(?:{_DAY_28}|29|30)|(?:0[13578]|1[02])-(?:{_DAY_28}|29|3[01]))"
_DATE = f"(?:{_YEAR}-{_MONTH_DAY}|{_LEAP_YEAR}-02-29)"
_HOUR = "(?:[01][0-9]|2[0-3])"
_FRACTION = r"(?:\.[0-9]+)?"
_OFFSET = f"(?:[Zz]|[+-]{_HOUR}:[0-5][0-9])"


def _leap_seconds(*, half_hours: bool) -> str:
    """Times with the second 60 at 23:59 UTC, whose offset from UTC is whole hours or, if asked for, half ones.

    An hour and a minute have one offset of either sign at which it is 23:59 UTC, so each needs an alternative of its
    own. All 1440 would cost every schema with a date-time more than they are worth: no offset in use has other minutes
    but 30 and 45.
    """
    ways = []
    for hour in range(24):
        ways.append(f"{hour:02}:59:60{_FRACTION}(?:\\+{(hour + 1) % 24:02}|-{23 - hour:02}):00")
        if half_hours:
            ways.append(f"{hour:02}:29:60{_FRACTION}(?:\\+{hour:02}|-{23 - hour:02}):30")
    return f"23:59:60{_FRACTION}[Zz]|{'|'.join(ways)}"


_USUAL_TIME = f"{_HOUR}:[0-5][0-9]:[0-5][0-9]{_FRACTION}{_OFFSET}"
_TIME = f"(?:{_USUAL_TIME}|{_leap_seconds(half_hours=True)})"
_DATE_TIME = f"{_DATE}[Tt](?:{_USUAL_TIME}|{_leap_seconds(half_hours=False)})"


def _duration() -> str:
    """RFC 3339, appendix A: units from the largest to the smallest, none left out between; weeks stand alone."""
    number = "[0-9]+"
    minutes = f"{number}M(?:{number}S)?"
    hours = f"{number}H(?:{minutes})?"
    time = f"T(?:{hours}|{minutes}|{number}S)"
    months = f"{number}M(?:{number}D)?"
    years = f"{number}Y(?:{months})?"
    return f"P(?:(?:{years}|{months}|{number}D)(?:{time})?|{time}|{number}W)"


# Internet addresses: RFC 2673 section 3.2 (IPv4), RFC 4291 section 2.2 as RFC 3986 spells it (IPv6), RFC 1123

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = f"(?:{_OCTET}\\.){{3}}{_OCTET}"


def _ipv6() -> str:
    """The forms by the number of groups before and after ``::``; an IPv4 address may stand for the last two."""
    group = "[0-9A-Fa-f]{1,4}"
    plain = [f"(?:{group}:){{7}}{group}", f":(?:(?::{group}){{1,7}}|:)", f"(?:{group}:){{1,7}}:"]
    plain += [f"(?:{group}:){{1,{most}}}(?::{group}){{1,{7 - most}}}" for most in range(1, 7)]
    mixed = [f"(?:{group}:){{6}}", f":(?::{group}){{0,5}}:"]
    mixed += [f"(?:{group}:){{1,{most}}}(?::{group}){{0,{5 - most}}}:" for most in range(1, 5)]
    mixed += [f"(?:{group}:){{1,5}}:"]
    return f"(?:{'|'.join(plain)}|(?:{'|'.join(mixed)}){_IPV4})"


_IPV6 = _ipv6()


def _hostname() -> str:
    """Labels of 1 to 63 letters, digits and inner hyphens.

    Labels that begin with ``xn--`` are left out: whether the rest is a legal spelling of a name in another script is
    not a matter of a regular expression.
    """
    end, inner = "[0-9A-Za-z]", "[0-9A-Za-z-]"
    no_x, no_n = "[0-9A-WYZa-wyz]", "[0-9A-MO-Za-mo-z]"
    after_x = f"{no_n}(?:{inner}{{0,60}}{end})?|-{inner}{{0,60}}{end}|[Nn](?:{end}(?:{inner}{{0,59}}{end})?)?"
    after_x += f"|[Nn]-{end}(?:{inner}{{0,58}}{end})?"
    label = f"(?:{no_x}(?:{inner}{{0,61}}{end})?|[Xx](?:{after_x})?)"
    return f"{label}(?:\\.{label})*"


# Mail: RFC 5321 section 4.1.2; RFC 6531 section 3.3 for other scripts

_ATOM = r"[0-9A-Za-z!#$%&'*+/=?^_`{|}~\-"
_WIDE = "\u0080-\ud7ff\ue000-\U0010ffff"


def _email(wide: str) -> str:
    """A mailbox; `wide` holds the further characters that its parts may have."""
    atom = f"{_ATOM}{wide}]+"
    quoted = f'"(?:[ !#-\\[\\]-~{wide}]|\\\\[ -~])*"'
    letter = f"[0-9A-Za-z{wide}]"
    label = f"{letter}+(?:-+{letter}+)*"
    literal = f"\\[(?:{_IPV4}|IPv6:{_IPV6})\\]"
    return f"(?:{atom}(?:\\.{atom})*|{quoted})@(?:{label}(?:\\.{label})*|{literal})"


# Resource identifiers: RFC 3986, RFC 3987, RFC 6570

_UCS = (
    "\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef"
    + "".join(f"{chr(plane << 16)}-{chr((plane << 16) + 0xFFFD)}" for plane in range(1, 14))
    + "\U000e1000-\U000efffd"
)
_PRIVATE = "\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd"
_ESCAPED = "%[0-9A-Fa-f]{2}"
_NAME_CHARS = "0-9A-Za-z._~!$&'()*+,;=\\-"


def _identifier(*, relative: bool, ucs: str = "", private: str = "") -> str:
    """A URI or, with the characters of `ucs` and in queries `private`, an IRI; `relative` ones too if asked for."""
    char = f"(?:[{_NAME_CHARS}:@{ucs}]|{_ESCAPED})"
    literal = f"\\[(?:{_IPV6}|[Vv][0-9A-Fa-f]+\\.[{_NAME_CHARS}:]+)\\]"
    user = f"(?:(?:[{_NAME_CHARS}:{ucs}]|{_ESCAPED})*@)?"
    host = f"(?:{literal}|(?:[{_NAME_CHARS}{ucs}]|{_ESCAPED})*)"
    rest = f"(?:/{char}*)*"
    network = f"//{user}{host}(?::[0-9]*)?{rest}"
    absolute = f"[A-Za-z][0-9A-Za-z+.-]*:(?:{network}|/?(?:{char}+{rest})?)"
    tail = f"(?:\\?(?:[{_NAME_CHARS}:@/?{ucs}{private}]|{_ESCAPED})*)?(?:#(?:[{_NAME_CHARS}:@/?{ucs}]|{_ESCAPED})*)?"
    if not relative:
        return absolute + tail
    first = f"(?:[{_NAME_CHARS}@{ucs}]|{_ESCAPED})+"
    return f"(?:{absolute}|{network}|/(?:{char}+{rest})?|(?:{first}{rest})?){tail}"


def _uri_template() -> str:
    literal = f"(?:[!#$&-;=?-\\[\\]_a-z~{_UCS}{_PRIVATE}]|{_ESCAPED})"
    char = f"(?:[0-9A-Za-z_]|{_ESCAPED})"
    variable = f"{char}+(?:\\.{char}+)*(?::[1-9][0-9]{{0,3}}|\\*)?"
    return f"(?:{literal}|\\{{[+#./;?&=,!@|]?{variable}(?:,{variable})*\\}})*"


_POINTER = "(?:/(?:[^/~]|~[01])*)*"  # RFC 6901
_HEX = "[0-9A-Fa-f]"

_HOSTNAME = Format(_hostname(), 253)
_IPV4_FORMAT = Format(_IPV4)

FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "date": Format(_DATE),
        "time": Format(_TIME),
        "date-time": Format(_DATE_TIME),
        "duration": Format(_duration()),
        "email": Format(_email("")),
        "idn-email": Format(_email(_WIDE)),
        "hostname": _HOSTNAME,
        "host-name": _HOSTNAME,  # draft 3
        "ipv4": _IPV4_FORMAT,
        "ip-address": _IPV4_FORMAT,  # draft 3
        "ipv6": Format(_IPV6),
        "uri": Format(_identifier(relative=False)),
        "uri-reference": Format(_identifier(relative=True)),
        "iri": Format(_identifier(relative=False, ucs=_UCS, private=_PRIVATE)),
        "iri-reference": Format(_identifier(relative=True, ucs=_UCS, private=_PRIVATE)),
        "uri-template": Format(_uri_template()),
        "uuid": Format(f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"),
        "json-pointer": Format(_POINTER),
        "relative-json-pointer": Format(f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})"),
    }
)
"""The known formats that are regular, by name."""

UNDECIDED_FORMATS: Mapping[str, str] = MappingProxyType(
    {"idn-hostname": "a label is legal by tables, directions and neighbours of its characters (RFC 5892)"}
)
"""Formats of JSON Schema that cannot be enforced, each with the reason why it is refused."""


NOT_REGULAR = frozenset({"regex"})
"""Known formats that are enforced, but only where nothing else is said of the string, save that it is not empty."""


def is_enforced(name: str, options: JsonOptions, *, pointer: str = "") -> bool:
    """Whether strings must be of the format `name`; else it says nothing.

    Raises:
        UnsupportedGrammarError: no grammar can say what it asks for; or it is unknown, and `options` refuse that.
    """
    if not options.formats:
        return False
    if name in FORMATS or name in NOT_REGULAR:
        return True
    if name in UNDECIDED_FORMATS:
        raise UnsupportedGrammarError(
            f"the format {name!r} is not supported, because {UNDECIDED_FORMATS[name]}", pointer=pointer
        )
    if options.unknown_formats == "refuse":
        close = difflib.get_close_matches(name, [*FORMATS, *NOT_REGULAR], 1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are: {', '.join([*FORMATS, *NOT_REGULAR])}"
        raise UnsupportedGrammarError(f"unknown format {name!r}; {hint}", pointer=pointer)
    return False


def format_rules(name: str, spell: Callable[[CodePoints], Node], *, may_be_empty: bool = True) -> Rules | None:
    """The rules of a known format that is not regular; None of any other.

    Args:
        name: of the format.
        spell: how one character of a set is written inside a JSON string (see json_text.py). The rules are the text
            between the quotes; their names begin with ``json/``, and are the same for every spelling.
        may_be_empty: whether the empty text is left in.
    """
    return regex_rules(spell, may_be_empty=may_be_empty) if name in NOT_REGULAR else None
