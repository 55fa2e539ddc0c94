"""The formats of strings that JSON Schema defines, as languages.

A name that it doesn't define has no meaning and allows every string, as the standard says. What it
defines and isn't here can't be enforced.
"""

from functools import lru_cache
from typing import Final

from antiphon_server.constraints.languages.patterns import matched
from antiphon_server.constraints.languages.terms import ANY_TEXT, Term, both, of_length

_UNENFORCEABLE: Final = frozenset({"regex", "idn-hostname", "uri-template"})

_LEAP_YEAR: Final = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE: Final = (
    r"(?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
    rf"|{_LEAP_YEAR}-02-29)"
)
_OFFSET: Final = r"(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_TIME: Final = (
    rf"(?:(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?{_OFFSET}"
    r"|23:59:60(?:\.\d+)?(?:[Zz]|[+-]00:00))"
)
_DURATION: Final = (
    r"P(?:\d+W|(?:(?:\d+D|\d+M(?:\d+D)?|\d+Y(?:\d+M(?:\d+D)?)?)"
    r"(?:T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S))?)"
    r"|T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S))"
)
_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_PLAIN_LABEL: Final = (
    r"(?:[A-WYZa-wyz0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
    r"|[Xx](?:[A-MO-Za-mo-z0-9](?:[A-Za-z0-9-]{0,60}[A-Za-z0-9])?|-[A-Za-z0-9-]{0,60}[A-Za-z0-9])?"
    r"|[Xx][Nn](?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,59}[A-Za-z0-9])?"
    r"|-[A-Za-z0-9](?:[A-Za-z0-9-]{0,58}[A-Za-z0-9])?)?)"
)
"""None that begins with `xn--` and stands for other scripts: which of those are valid is more than
an expression says. Without a complement, since beside counts the library can't take one apart."""
_HOSTNAME: Final = rf"{_LABEL}(?:\.{_LABEL})*"
_PLAIN_HOSTNAME: Final = rf"{_PLAIN_LABEL}(?:\.{_PLAIN_LABEL})*"
_OCTET: Final = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4: Final = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_GROUP: Final = r"[0-9A-Fa-f]{1,4}"
_LAST_GROUPS: Final = rf"(?:{_GROUP}:{_GROUP}|{_IPV4})"
_IPV6: Final = "(?:" + "|".join(
    (
        rf"(?:{_GROUP}:){{6}}{_LAST_GROUPS}",
        rf"::(?:{_GROUP}:){{5}}{_LAST_GROUPS}",
        rf"(?:{_GROUP})?::(?:{_GROUP}:){{4}}{_LAST_GROUPS}",
        rf"(?:(?:{_GROUP}:){{0,1}}{_GROUP})?::(?:{_GROUP}:){{3}}{_LAST_GROUPS}",
        rf"(?:(?:{_GROUP}:){{0,2}}{_GROUP})?::(?:{_GROUP}:){{2}}{_LAST_GROUPS}",
        rf"(?:(?:{_GROUP}:){{0,3}}{_GROUP})?::{_GROUP}:{_LAST_GROUPS}",
        rf"(?:(?:{_GROUP}:){{0,4}}{_GROUP})?::{_LAST_GROUPS}",
        rf"(?:(?:{_GROUP}:){{0,5}}{_GROUP})?::{_GROUP}",
        rf"(?:(?:{_GROUP}:){{0,6}}{_GROUP})?::",
    )
) + ")"  # fmt: skip
_ATOM: Final = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_QUOTED: Final = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_EMAIL_HOST: Final = rf"(?:{_HOSTNAME}|\[(?:{_IPV4}|IPv6:{_IPV6})\])"
_EMAIL: Final = rf"(?:{_ATOM}(?:\.{_ATOM})*|{_QUOTED})@{_EMAIL_HOST}"
_WIDE: Final = r"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef\u{10000}-\u{efffd}"
_WIDE_ATOM: Final = rf"[A-Za-z0-9!#$%&'*+/=?^_`{{|}}~{_WIDE}-]+"
_WIDE_LABEL: Final = rf"[A-Za-z0-9{_WIDE}](?:[A-Za-z0-9{_WIDE}-]*[A-Za-z0-9{_WIDE}])?"
_WIDE_EMAIL: Final = rf"{_WIDE_ATOM}(?:\.{_WIDE_ATOM})*@{_WIDE_LABEL}(?:\.{_WIDE_LABEL})*"
_POINTER: Final = r"(?:/(?:[^~/]|\n|\r|\u2028|\u2029|~[01])*)*"


def _reference(wide: str, *, relative: bool) -> str:
    """The syntax of RFC 3986; `wide`: characters that RFC 3987 adds, as the inside of a class."""
    plain = rf"A-Za-z0-9._~!$&'()*+,;={wide}\-"
    encoded = "%[0-9A-Fa-f]{2}"
    segment = rf"(?:[{plain}:@]|{encoded})"
    host = rf"(?:\[(?:{_IPV6}|[vV][0-9A-Fa-f]+\.[{plain}:]+)\]|(?:[{plain}]|{encoded})*)"
    authority = rf"//(?:(?:[{plain}:]|{encoded})*@)?{host}(?::\d*)?(?:/{segment}*)*"
    rooted = rf"/(?:{segment}+(?:/{segment}*)*)?"
    rootless = rf"{segment}+(?:/{segment}*)*"
    tail = rf"(?:\?(?:{segment}|[/?])*)?(?:#(?:{segment}|[/?])*)?"
    absolute = rf"[A-Za-z][A-Za-z0-9+.-]*:(?:{authority}|{rooted}|{rootless}|){tail}"
    if not relative:
        return absolute
    first = rf"(?:[{plain}@]|{encoded})+"
    return rf"(?:{absolute}|(?:{authority}|{rooted}|{first}(?:/{segment}*)*|){tail})"


_PATTERNS: Final = {
    "date-time": f"{_DATE}[Tt]{_TIME}",
    "date": _DATE,
    "time": _TIME,
    "duration": _DURATION,
    "email": _EMAIL,
    "idn-email": _WIDE_EMAIL,
    "hostname": _PLAIN_HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _reference("", relative=False),
    "uri-reference": _reference("", relative=True),
    "iri": _reference(_WIDE, relative=False),
    "iri-reference": _reference(_WIDE, relative=True),
    "uuid": "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9]\d*)(?:#|{_POINTER})",
}
_LONGEST: Final = {"hostname": 253, "email": 320}


@lru_cache(maxsize=32)
def format_language(name: str) -> Term | None:
    """Returns a format's strings; None: they can't be enforced."""
    if name in _UNENFORCEABLE:
        return None
    if name not in _PATTERNS:
        return ANY_TEXT
    language = matched(_PATTERNS[name])
    longest = _LONGEST.get(name)
    return language if longest is None else both(language, of_length(0, longest))
