"""Finds what references of a document mean. Nothing is fetched: what isn't in it is refused."""

from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote, urldefrag, urljoin

from antiphon_server.constraints.json_schema.dialect import Dialect
from antiphon_server.constraints.json_schema.document import Json, escape_pointer
from antiphon_server.constraints.json_schema.schema_node import SchemaNode
from antiphon_server.constraints.refusals import UnsupportedConstraintError, shown

_WITH_SCHEMA: Final = (
    "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items",
    "not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_WITH_SCHEMAS: Final = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_WITH_NAMED_SCHEMAS: Final = (
    "$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties",
)  # fmt: skip
_SAME_PLACE: Final = ("else", "if", "not", "then")
_SAME_PLACE_LISTS: Final = ("allOf", "anyOf", "oneOf")
_SAME_PLACE_NAMED: Final = ("dependencies", "dependentSchemas")


class References:
    """The subschemas of a document by their names and places."""

    def __init__(self, schema: dict[str, Json] | bool, dialect: Dialect) -> None:
        self._dialect = dialect
        self._bases: dict[str, str] = {}
        self._resources: dict[str, SchemaNode] = {}
        self._anchors: dict[tuple[str, str], SchemaNode] = {}
        self._dynamic: dict[str, list[SchemaNode]] = {}
        self._free_of_loops: set[SchemaNode] = set()
        self.root = SchemaNode("", schema, "", dialect)
        self._resources[""] = self.root
        self._register(self.root, "")
        self.root = self._at("", schema, "")

    def child(self, node: SchemaNode, *path: str | int) -> SchemaNode:
        """Returns the subschema at a path below a node.

        Raises:
            UnsupportedConstraintError: there is no schema there.
        """
        pointer, value = node.pointer, node.value
        below: Json = value
        for step in path:
            pointer += f"/{escape_pointer(str(step))}"
            if isinstance(below, dict):
                below = below.get(str(step))
            elif isinstance(below, list):
                below = below[int(step)]
        return self._at(pointer, below, node.base)

    def children(self, node: SchemaNode, keyword: str) -> tuple[SchemaNode, ...]:
        """Returns the subschemas of a keyword whose value is a list of them."""
        value = node.get(keyword)
        if not isinstance(value, list) or not value:
            node.refuse(keyword, "this must be a list of schemas, and not an empty one")
        return tuple(self.child(node, keyword, index) for index in range(len(value)))

    def target(self, node: SchemaNode, keyword: str) -> SchemaNode:
        """Returns what the node's reference means.

        Raises:
            UnsupportedConstraintError: nothing in the document, or not always the same.
        """
        reference = node.get(keyword)
        if not isinstance(reference, str):
            node.refuse(keyword, "this must be a string")
        uri, fragment = urldefrag(_join(node.base, reference))
        if uri not in self._resources:
            node.refuse(
                keyword,
                f"{shown(reference)} isn't in this document, and nothing is fetched; use $defs",
            )
        target = self._fragment(node, keyword, self._resources[uri], unquote(fragment))
        if keyword == "$dynamicRef":
            self._check_not_dynamic(node, keyword, target)
        if keyword == "$recursiveRef" and len(self._dynamic.get("", ())) > 1:
            node.refuse(keyword, "this may mean several schemas, depending on where it comes from")
        return target

    def check_no_loop(self, node: SchemaNode) -> None:
        """Makes sure that the node doesn't refer to itself without a level of nesting between.

        Raises:
            UnsupportedConstraintError: it does.
        """
        self._follow(node, ())

    def _follow(self, node: SchemaNode, trail: tuple[SchemaNode, ...]) -> None:
        if node in self._free_of_loops:
            return
        if node in trail:
            raise UnsupportedConstraintError(
                trail[-1].pointer, f"this refers to {node.pointer or '#'}, which refers back to it"
            )
        for other in self._same_place(node):
            self._follow(other, (*trail, node))
        self._free_of_loops.add(node)

    def _same_place(self, node: SchemaNode) -> Iterator[SchemaNode]:
        """The subschemas that hold for the same value as the node."""
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            if node.has(keyword):
                yield self.target(node, keyword)
        if node.has("$ref") and node.dialect.reference_stands_alone:
            return
        for keyword in _SAME_PLACE:
            if isinstance(node.get(keyword), dict):
                yield self.child(node, keyword)
        for keyword in _SAME_PLACE_LISTS:
            if node.has(keyword):
                yield from self.children(node, keyword)
        for keyword in _SAME_PLACE_NAMED:
            for name, value in node.members(keyword):
                if isinstance(value, dict):
                    yield self.child(node, keyword, name)

    def _at(self, pointer: str, value: Json, base: str) -> SchemaNode:
        if not isinstance(value, dict | bool):
            raise UnsupportedConstraintError(pointer, "a schema is an object, true or false")
        return SchemaNode(pointer, value, self._bases.get(pointer, base), self._dialect)

    def _register(self, node: SchemaNode, base: str) -> None:
        """Notes the names of a subschema and of all below it."""
        schema = node.value
        if isinstance(schema, bool):
            return
        base = self._register_names(node, schema, base)
        for keyword in _WITH_SCHEMA:
            self._register_below(schema.get(keyword), f"{node.pointer}/{keyword}", base)
        for keyword in _WITH_SCHEMAS:
            items = schema.get(keyword)
            for index, item in enumerate(items if isinstance(items, list) else ()):
                self._register_below(item, f"{node.pointer}/{keyword}/{index}", base)
        for keyword in _WITH_NAMED_SCHEMAS:
            members = schema.get(keyword)
            for name, item in (members if isinstance(members, dict) else {}).items():
                pointer = f"{node.pointer}/{keyword}/{escape_pointer(name)}"
                self._register_below(item, pointer, base)

    def _register_below(self, value: Json, pointer: str, base: str) -> None:
        if isinstance(value, dict):
            self._register(SchemaNode(pointer, value, base, self._dialect), base)

    def _register_names(self, node: SchemaNode, schema: dict[str, Json], base: str) -> str:
        name = schema.get(self._dialect.id_keyword)
        alone = self._dialect.reference_stands_alone and "$ref" in schema
        if isinstance(name, str) and not alone:
            if name.startswith("#"):
                self._anchors[base, name[1:]] = SchemaNode(
                    node.pointer, schema, base, self._dialect
                )
            else:
                base = urldefrag(_join(base, name)).url
                self._bases[node.pointer] = base
                self._resources[base] = SchemaNode(node.pointer, schema, base, self._dialect)
        here = SchemaNode(node.pointer, schema, base, self._dialect)
        for keyword in ("$anchor", "$dynamicAnchor"):
            anchor = schema.get(keyword)
            if isinstance(anchor, str):
                self._anchors[base, anchor] = here
                if keyword == "$dynamicAnchor":
                    self._dynamic.setdefault(anchor, []).append(here)
        if schema.get("$recursiveAnchor") is True:
            self._dynamic.setdefault("", []).append(here)
        return base

    def _fragment(
        self, node: SchemaNode, keyword: str, resource: SchemaNode, fragment: str
    ) -> SchemaNode:
        if fragment and not fragment.startswith("/"):
            anchor = self._anchors.get((resource.base, fragment))
            if anchor is None:
                node.refuse(keyword, f"there is no $anchor {shown(fragment)} in this document")
            return anchor
        pointer, value, base = resource.pointer, resource.value, resource.base
        below: Json = value
        for part in fragment.split("/")[1:]:
            step = part.replace("~1", "/").replace("~0", "~")
            below = self._step(node, keyword, below, step)
            pointer += f"/{escape_pointer(step)}"
            base = self._bases.get(pointer, base)
        if not isinstance(below, dict | bool):
            node.refuse(keyword, f"what {shown(str(node.get(keyword)))} refers to is no schema")
        return SchemaNode(pointer, below, base, self._dialect)

    def _step(self, node: SchemaNode, keyword: str, below: Json, step: str) -> Json:
        if isinstance(below, dict) and step in below:
            return below[step]
        if isinstance(below, list) and step.isdecimal() and int(step) < len(below):
            return below[int(step)]
        node.refuse(keyword, f"{shown(str(node.get(keyword)))} refers to nothing in this document")

    def _check_not_dynamic(self, node: SchemaNode, keyword: str, target: SchemaNode) -> None:
        anchor = target.get("$dynamicAnchor")
        reference = str(node.get(keyword))
        is_dynamic = isinstance(anchor, str) and reference.endswith(f"#{anchor}")
        if is_dynamic and len(self._dynamic[str(anchor)]) > 1:
            node.refuse(keyword, "this may mean several schemas, depending on where it comes from")


def _join(base: str, reference: str) -> str:
    if reference.startswith("#") or not reference:
        return urldefrag(base).url + reference
    return urljoin(base, reference)
