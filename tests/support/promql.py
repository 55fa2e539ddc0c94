"""What Prometheus's queries read, and what labels their results have."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import promql_parser as promql

TARGET_LABELS = frozenset({"job", "instance"})
"""What Prometheus adds to all that it reads."""
_EQUAL = (promql.MatchOp.Equal, promql.MatchOp.Re)
_SET_OPERATORS = ("and", "unless", "or")


@dataclass(frozen=True, slots=True)
class Selector:
    """Series that a query reads."""

    metric: str
    labels: frozenset[str]
    """Those that it looks at."""
    wanted: frozenset[tuple[str, str]]
    """Label values that it wants, one by one."""


def parse(query: str) -> promql.Expr:
    """Returns a query's expression, with what Grafana would put into it."""
    filled = query.replace("$__rate_interval", "5m")
    for variable in ("$instance", "$model"):
        filled = filled.replace(variable, ".*")
    assert "$" not in filled, f"no such variable: {query}"
    return promql.parse(filled)


def selectors(expression: promql.Expr) -> Iterator[Selector]:
    """Yields all selectors."""
    found: list[promql.VectorSelector] = []

    def note(node: promql.Expr) -> None:
        if isinstance(node, promql.VectorSelector):
            found.append(node)
        elif isinstance(node, promql.MatrixSelector):
            found.append(node.vector_selector)

    promql.walk(expression, note)
    for node in found:
        matchers = node.matchers.matchers
        yield Selector(
            metric=node.name,
            labels=frozenset(matcher.name for matcher in matchers),
            wanted=frozenset(
                (matcher.name, value)
                for matcher in matchers
                if matcher.op in _EQUAL and matcher.value != ".*"
                for value in matcher.value.split("|")
            ),
        )


def result_labels(node: promql.Expr, labels_of: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Returns the labels of a query's result.

    Args:
        node: The query.
        labels_of: By metric, those of its series.

    Raises:
        AssertionError: a part of it groups by a label that its series don't have.
    """
    match node:
        case promql.NumberLiteral() | promql.StringLiteral():
            return frozenset()
        case promql.VectorSelector():
            found = labels_of[node.name] | TARGET_LABELS
        case promql.MatrixSelector():
            found = labels_of[node.vector_selector.name] | TARGET_LABELS
        case promql.Call():
            found = _labels_of_call(node, labels_of)
        case promql.AggregateExpr():
            found = _labels_of_groups(node, labels_of)
        case promql.BinaryExpr():
            found = _labels_of_both(node, labels_of)
        case _:  # Parentheses, and what else changes values only.
            found = result_labels(node.expr, labels_of)
    return found


def _labels_of_call(node: promql.Call, labels_of: Mapping[str, frozenset[str]]) -> frozenset[str]:
    if node.func.name == "absent":
        return frozenset()
    parts = [result_labels(each, labels_of) for each in node.args]
    spent = {"le"} if node.func.name == "histogram_quantile" else set()
    return frozenset().union(*parts) - spent


def _labels_of_groups(
    node: promql.AggregateExpr, labels_of: Mapping[str, frozenset[str]]
) -> frozenset[str]:
    before = result_labels(node.expr, labels_of)
    if node.modifier is None:
        return frozenset()
    by = frozenset(node.modifier.labels)
    assert node.modifier.type == promql.AggModifierType.By, "say by which labels"
    assert by <= before, f"{set(by - before)} in {node.prettify()}"
    return by


def _labels_of_both(
    node: promql.BinaryExpr, labels_of: Mapping[str, frozenset[str]]
) -> frozenset[str]:
    left = result_labels(node.lhs, labels_of)
    right = result_labels(node.rhs, labels_of)
    if str(node.op) in _SET_OPERATORS or not right:
        return left
    assert not left or left == right, f"sides can't be matched: {node.prettify()}"
    return right
