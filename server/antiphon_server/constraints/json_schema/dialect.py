"""What `$schema` decides: which draft's meaning the keywords have."""

import enum
from typing import Final

from antiphon_server.constraints.json_schema.document import Json
from antiphon_server.constraints.refusals import UnsupportedConstraintError, shown


class Dialect(enum.Enum):
    """A draft of JSON Schema."""

    DRAFT_4 = "http://json-schema.org/draft-04/schema"
    DRAFT_6 = "http://json-schema.org/draft-06/schema"
    DRAFT_7 = "http://json-schema.org/draft-07/schema"
    DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
    DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"
    UNDECLARED = ""
    """Draft 2020-12, with what older drafts have and it doesn't; formats are asserted."""

    @property
    def reference_stands_alone(self) -> bool:
        """Whether keywords beside `$ref` have no meaning."""
        return self in (Dialect.DRAFT_4, Dialect.DRAFT_6, Dialect.DRAFT_7)

    @property
    def asserts_formats(self) -> bool:
        """Whether `format` is more than a note to readers."""
        return self not in (Dialect.DRAFT_2019, Dialect.DRAFT_2020)

    @property
    def has_tuple_items(self) -> bool:
        """Whether `items` may be a list, and `additionalItems` is what comes behind it."""
        return self is not Dialect.DRAFT_2020

    @property
    def id_keyword(self) -> str:
        """The keyword that names a subschema."""
        return "id" if self is Dialect.DRAFT_4 else "$id"


_BY_URI: Final = {dialect.value: dialect for dialect in Dialect if dialect.value}


def dialect_of(schema: Json) -> Dialect:
    """Returns the dialect that a document declares.

    Raises:
        UnsupportedConstraintError: it is none that is known.
    """
    if not isinstance(schema, dict) or "$schema" not in schema:
        return Dialect.UNDECLARED
    declared = schema["$schema"]
    uri = (
        declared.rstrip("#").replace(
            "https://json-schema.org/draft-", "http://json-schema.org/draft-"
        )
        if isinstance(declared, str)
        else ""
    )
    if uri in ("http://json-schema.org/schema", "https://json-schema.org/schema"):
        return Dialect.UNDECLARED
    if uri not in _BY_URI:
        known = ", ".join(_BY_URI)
        raise UnsupportedConstraintError(
            "/$schema", f"{shown(str(declared))} isn't a dialect that is known; these are: {known}"
        )
    return _BY_URI[uri]
