"""Arize Phoenix, which shows traces, and Prometheus, which keeps metrics."""

import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from observe.programs import Program, answers, read_json
from observe.span_tree import Span

PROJECT = "antiphon"
ALERTS = Path(__file__).parents[2] / "deploy" / "otel" / "alerts.yml"
_PAGE_SPANS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Phoenix:
    """Takes spans by OTLP over gRPC and shows them over HTTP."""

    port: int
    otlp_port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def otlp_endpoint(self) -> str:
        return f"http://127.0.0.1:{self.otlp_port}"

    def program(self, executable: Path, data: Path) -> Program:
        """Returns how it is run, with its database in `data`."""
        environ = {
            "PHOENIX_WORKING_DIR": str(data),
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_PORT": str(self.port),
            "PHOENIX_GRPC_PORT": str(self.otlp_port),
            "PHOENIX_TELEMETRY_ENABLED": "false",
            "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
            "PHOENIX_DISABLE_AGENT_ASSISTANT": "true",
        }
        return Program(
            name="phoenix",
            command=[str(executable), "serve"],
            is_ready=lambda: answers(f"{self.url}/healthz"),
            environ=environ,
            # It brings its database forward, which takes minutes on a busy machine.
            start_limit_s=600.0,
        )

    def spans(self) -> list[Span]:
        """Returns all spans of the server that it has; none before the first have come."""
        if PROJECT not in self._projects():
            return []
        return [Span.from_phoenix(row) for row in self._rows()]

    def trace_url(self, trace_id: str) -> str:
        """Returns where a person sees a trace."""
        return f"{self.url}/projects/{self._projects()[PROJECT]}/traces/{trace_id}"

    def _projects(self) -> dict[str, str]:
        """The projects' ids, by name."""
        rows = read_json(f"{self.url}/v1/projects")["data"]
        assert isinstance(rows, list)
        return {row["name"]: row["id"] for row in rows}

    def _rows(self) -> Iterator[dict[str, object]]:
        cursor = ""
        while True:
            page = {"limit": str(_PAGE_SPANS), **({"cursor": cursor} if cursor else {})}
            words = urllib.parse.urlencode(page)
            told = read_json(f"{self.url}/v1/projects/{PROJECT}/spans?{words}")
            rows = told["data"]
            assert isinstance(rows, list)
            yield from rows
            cursor = str(told.get("next_cursor") or "")
            if not cursor:
                return


@dataclass(frozen=True, slots=True, kw_only=True)
class Prometheus:
    """Reads the server's metrics every second."""

    port: int
    metrics_address: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def program(self, executable: Path, data: Path) -> Program:
        """Returns how it is run, with its settings and its database in `data`."""
        settings = data / "prometheus.yml"
        settings.write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
            f"rule_files: ['{ALERTS}']\n"
            "scrape_configs:\n"
            "  - job_name: antiphon\n"
            f"    static_configs: [{{targets: ['{self.metrics_address}']}}]\n"
        )
        command = [
            str(executable),
            f"--config.file={settings}",
            f"--storage.tsdb.path={data / 'prometheus'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        return Program(
            name="prometheus",
            command=command,
            is_ready=lambda: answers(f"{self.url}/-/ready"),
        )

    def value(self, query: str) -> float | None:
        """Returns what a query gives that has one value; None where it has none yet."""
        words = urllib.parse.urlencode({"query": query})
        data = read_json(f"{self.url}/api/v1/query?{words}")["data"]
        assert isinstance(data, dict)
        rows = data["result"]
        assert len(rows) <= 1, rows
        return float(rows[0]["value"][1]) if rows else None

    def graph_url(self, query: str) -> str:
        """Returns where a person sees a query's values."""
        words = urllib.parse.urlencode({"g0.expr": query, "g0.tab": "0", "g0.range_input": "5m"})
        return f"{self.url}/graph?{words}"
