"""A Jinja environment for chat templates, which are foreign code: sandboxed and bounded.

It renders what transformers renders. Every loop round, call and output is counted, so that a
template can neither run on nor fill the memory: no other thread has to stop it.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils
import jinja2.visitor

from antiphon_server.text.template_weights import (
    Spent,
    guarded_filters,
    weigh,
    weigh_call,
    weigh_operation,
)


class TemplateRefusalError(jinja2.TemplateError):
    """The template itself refuses the conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateLimits:
    """What one rendering may take."""

    time_s: float = 2.0
    num_chars: int = 128 << 20
    """Characters made in all, intermediate ones included."""


class TemplateSandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The environment. One for each template; renders in several threads at once."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(
        self,
        limits: TemplateLimits,
        *,
        now: Callable[[], datetime],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing is computed before it can be counted
            extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
            finalize=self._count_output,
        )
        self._limits = limits
        self._monotonic = monotonic
        self._current = threading.local()
        self.filters["tojson"] = _to_json
        self.filters.update(guarded_filters(self.filters, self.spend))
        self.globals = {
            "range": self.globals["range"],
            "cycler": self.globals["cycler"],
            "joiner": self.globals["joiner"],
            "dict": _DictMaker(),
            "namespace": _Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": lambda text: now().strftime(text),
        }

    def render(self, template: jinja2.Template, variables: Mapping[str, object]) -> str:
        """Renders within the limits.

        Raises:
            TemplateBudgetError: The template takes more than the limits allow.
            Exception: Whatever the template provokes.
        """
        deadline = self._monotonic() + self._limits.time_s
        self._current.spent = Spent(
            limit=self._limits.num_chars, deadline=deadline, monotonic=self._monotonic
        )
        try:
            return "".join(template.generate(variables))
        finally:
            self._current.spent = None

    def spend(self, num_chars: int = 0) -> None:
        """Counts some work against the current rendering's limits."""
        spent: Spent | None = getattr(self._current, "spent", None)
        if spent is not None:  # None while a template is compiled
            spent.add(num_chars)

    def concatenate(self, *values: object) -> str:
        """The `~` operator."""
        for value in values:
            self.spend(weigh(value))
        return "".join(map(str, values))

    def call(
        self,
        context: jinja2.runtime.Context,
        function: object,
        /,
        *args: object,
        **kwargs: object,
    ) -> object:
        """Calls what a template calls."""
        if function == self.spend:
            self.spend(*args)  # type: ignore[arg-type]
            return None
        self.spend(weigh_call(function, args, kwargs))
        return super().call(context, function, *args, **kwargs)

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: object, right: object
    ) -> object:
        """Applies an operator that can make something large."""
        self.spend(weigh_operation(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree = super()._parse(source, name, filename)
        _RoundCounter().visit(tree)
        return tree

    def _count_output(self, value: object) -> object:
        self.spend(weigh(value))
        return value


class _RoundCounter(jinja2.visitor.NodeTransformer):
    """Makes a template count its loop rounds, and the text of its own that it repeats."""

    def __init__(self) -> None:
        self._depth = 0

    def visit(self, node: jinja2.nodes.Node, *args: object, **kwargs: object) -> object:
        """The node, or what takes its place."""
        match node:
            case jinja2.nodes.For() | jinja2.nodes.Macro() | jinja2.nodes.CallBlock():
                return self._visit_repeated(node)
            case jinja2.nodes.Output():
                return self._visit_output(node)
            case jinja2.nodes.Concat():
                return self._visit_concatenation(node)
        return super().visit(node, *args, **kwargs)

    def _visit_output(self, node: jinja2.nodes.Output) -> list[jinja2.nodes.Node]:
        self.generic_visit(node)
        parts = [part for part in node.nodes if isinstance(part, jinja2.nodes.TemplateData)]
        if not self._depth or not parts:
            return [node]
        return [_spending(sum(len(part.data) for part in parts), node.lineno), node]

    def _visit_concatenation(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:
        self.generic_visit(node)
        function = jinja2.nodes.EnvironmentAttribute("concatenate", lineno=node.lineno)
        return jinja2.nodes.Call(function, node.nodes, [], None, None, lineno=node.lineno)

    def _visit_repeated(
        self, node: jinja2.nodes.For | jinja2.nodes.Macro | jinja2.nodes.CallBlock
    ) -> jinja2.nodes.Node:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1
        node.body.insert(0, _spending(0, node.lineno))
        return node


def _spending(num_chars: int, lineno: int) -> jinja2.nodes.Node:
    function = jinja2.nodes.EnvironmentAttribute("spend", lineno=lineno)
    weight = jinja2.nodes.Const(num_chars, lineno=lineno)
    call = jinja2.nodes.Call(function, [weight], [], None, None, lineno=lineno)
    return jinja2.nodes.ExprStmt(call, lineno=lineno)


class _GenerationBlock(jinja2.ext.Extension):
    """The tag around what a model generates: for training; here it shows its body."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=lineno)


class _DictMaker:
    """What templates call to make a dict; the class itself would let them reach too far."""

    def __call__(self, *args: object, **kwargs: object) -> object:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: object, value: object = None) -> dict[object, object]:
        return dict.fromkeys(keys, value)  # type: ignore[call-overload,no-any-return]


class _Namespace(jinja2.utils.Namespace):
    """Values that templates may set inside loops; names with a leading underscore are refused."""

    def __init__(*args: object, **kwargs: object) -> None:
        own, *values = args
        assert isinstance(own, _Namespace)
        named = dict(*values, **kwargs)
        for name in named:
            _check_attribute(name)
        jinja2.utils.Namespace.__init__(own, named)

    def __setitem__(self, name: str, value: object) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace can't hold {name!r}")


def _raise_exception(message: object) -> None:
    raise TemplateRefusalError(str(message))


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
