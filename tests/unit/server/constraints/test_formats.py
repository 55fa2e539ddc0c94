"""The formats of strings."""

import pytest

from antiphon_server.constraints.json_schema.formats import format_language
from antiphon_server.constraints.languages.derivatives import matches


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("date", ["2000-02-29", "2023-12-31"], ["1900-02-29", "2023-04-31", "23-01-01"]),
        ("time", ["23:59:60Z", "08:30:06.283185Z"], ["24:00:00Z", "08:30:60Z", "08:30:00"]),
        ("date-time", ["2024-02-29T01:02:03+05:30"], ["2024-02-29 01:02:03Z", "2024-02-29"]),
        ("duration", ["P4DT12H30M5S", "P2W", "PT36H"], ["P", "P1YT", "P2D1Y", "P1W2D"]),
        ("email", ["a.b+c@d.example", '"x y"@z.example'], ["a@", "@b", "a..b@c", "a@-b"]),
        ("hostname", ["a-b.example"], ["-a", "a_b", "x" * 64, "a..b", "xn--nxa.example"]),
        ("hostname", ["x.xn.xn-a.xna.x-1", "xn-" + "a" * 60], ["x-", "xn-", "xn" + "a" * 62]),
        ("hostname", ["axn--b", ".".join(["abc"] * 63)], ["a.XN--b", ".".join(["abc"] * 64)]),
        ("ipv4", ["0.0.0.0", "255.1.20.3"], ["256.1.1.1", "01.1.1.1", "1.1.1"]),
        ("ipv6", ["::", "1::8", "1:2:3:4:5:6:1.2.3.4"], ["1:2:3:4:5:6:7", "1::2::3", "12345::"]),
        ("uri", ["https://u@h.example:8/p?q#f", "urn:a:b"], ["//h", "a b:c", "http://h/%4"]),
        ("uri-reference", ["", "../a", "//h/p", "#f"], ["a b", "\\\\h"]),
        ("uuid", ["2eb8aa08-AA98-11ea-b4aa-73b441d16380"], ["2eb8aa08aa9811eab4aa73b441d16380"]),
        ("json-pointer", ["", "/a~0/b~1"], ["a", "/~2"]),
        ("relative-json-pointer", ["0", "1/a", "2#"], ["/a", "01"]),
        ("idn-email", ["ö@ü.example"], ["ö"]),
        ("iri", ["https://ü.example/ö"], ["ö"]),
    ],
)
def test_a_format_has_the_strings_of_its_standard(name: str, inside: list[str], outside: list[str]):
    language = format_language(name)
    assert language is not None
    assert [text for text in inside if not matches(language, text)] == []
    assert [text for text in outside if matches(language, text)] == []


def test_what_no_expression_says_is_not_offered():
    assert format_language("regex") is None
    assert format_language("idn-hostname") is None
