"""The recipe for collector, Prometheus and Grafana: it fits what servers tell, and settings."""

import asyncio
import json
import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import yaml
from antiphon.v1.session_pb2 import AppendItems, CreateSessionRequest

from antiphon_server.config import Config
from antiphon_server.settings import describe
from antiphon_server.telemetry import conventions
from support.certificates import Authority
from support.promql import TARGET_LABELS, parse, result_labels, selectors
from support.promtool import promtool
from support.scrapes import Scraped, http, scrape
from support.server import running_server
from support.traces import converse, request, turn

RECIPE = Path(__file__).parents[3] / "deploy" / "otel"
LISTEN = "telemetry.prometheus_listen=127.0.0.1:0"
SETTING = re.compile(r"\b(?:engine|server|store|telemetry|limits|logging|quotas)\.[a-z_]+\b")
SHOWN_LABEL = re.compile(r"\$labels\.(\w+)")
LEGEND_LABEL = re.compile(r"{{(\w+)}}")


@dataclass(frozen=True, slots=True)
class Query:
    """One, and the labels that the words beside it name."""

    place: str
    text: str
    shown: frozenset[str]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, set[str]]]:
    """What servers tell: by the name of the series, their labels with all values seen."""
    found: dict[str, dict[str, set[str]]] = {}
    for seen in asyncio.run(_scrapes(tmp_path_factory.mktemp("servers"))):
        for name, labels in seen.series:
            values = found.setdefault(name, {})
            for label, value in labels:
                values.setdefault(label, set()).add(value)
    return found


async def _scrapes(directory: Path) -> list[Scraped]:
    """Reads a server that has done a bit of everything, and one that is encrypted."""
    settings = [LISTEN, "quotas.requests_per_minute=5"]
    async with running_server(directory, settings=settings) as server:
        await server.inference.Generate(request(4))
        refused = request(4)
        refused.config.sampling.temperature = -1
        with pytest.raises(grpc.RpcError):
            await server.inference.Generate(refused)
        await server.sessions.CreateSession(CreateSessionRequest(session_id="a"))
        await converse(server, turn("t1"), AppendItems(turn_id="t2", items=turn("t2").items))
        calls = [server.inference.Generate(request(4)) for _ in range(5)]
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert any("requests_per_minute" in str(end) for end in ends)
        open_one = await scrape(server.server.metering.address)
    pair = Authority(directory / "authority").sign("server")
    tls = [f"server.tls_cert={pair.cert}", f"server.tls_key={pair.key}"]
    trusting = ssl.create_default_context()
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    async with running_server(directory / "encrypted", settings=[LISTEN, *tls]) as server:
        answer = await http(server.server.metering.address, ssl=trusting)
    return [open_one, Scraped.parse(answer.body)]


def alerts() -> Iterator[Query]:
    for group in yaml.safe_load((RECIPE / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            shown = SHOWN_LABEL.findall(rule["annotations"]["summary"])
            yield Query(rule["alert"], rule["expr"], frozenset(shown))


def panels() -> Iterator[Query]:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            shown = LEGEND_LABEL.findall(target["legendFormat"])
            yield Query(panel["title"], target["expr"], frozenset(shown))


def dashboard() -> Mapping[str, list[dict[str, object]]]:
    return json.loads((RECIPE / "dashboard.json").read_text())


QUERIES = [*alerts(), *panels()]


def test_prometheus_understands_the_dashboards_queries(tmp_path: Path):
    rules = [
        {"record": f"panel:{number}", "expr": parse(query.text).prettify()}
        for number, query in enumerate(panels())
    ]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "a", "rules": rules}]}))

    promtool("check", "rules", tmp_path / "rules.yml")


def test_every_metric_that_rules_and_dashboard_read_is_exported(exported):
    read = {each.metric for query in QUERIES for each in selectors(parse(query.text))}

    assert read - set(exported) == {"up"}
    assert len(read) > 40


def test_every_label_and_value_that_they_look_for_is_exported(exported):
    looked_for = [(query.place, each) for query in QUERIES for each in selectors(parse(query.text))]

    wrong = []
    for place, each in looked_for:
        values = {"job": {"antiphon"}, "instance": set(), **exported.get(each.metric, {})}
        wrong += [(place, label) for label in each.labels if label not in values]
        wrong += [(place, pair) for pair in each.wanted if pair[1] not in values.get(pair[0], ())]
    assert not wrong


def test_queries_group_by_labels_that_there_are_and_words_name_what_is_left(exported):
    labels_of = {name: frozenset(values) for name, values in exported.items()}
    labels_of["up"] = frozenset()

    wrong = [
        (query.place, label)
        for query in QUERIES
        for label in query.shown - result_labels(parse(query.text), labels_of)
    ]

    assert not wrong


def test_the_dashboards_variables_are_made_of_what_is_exported(exported):
    asked = [
        re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()
        for variable in dashboard()["templating"]["list"]
        if variable["type"] == "query"
    ]

    assert len(asked) == 2
    for metric, label in asked:
        assert label in {*exported[metric], *TARGET_LABELS}


def test_panels_have_titles_ids_and_places_of_their_own():
    drawn = dashboard()["panels"]
    cells = [
        (x, y)
        for panel in drawn
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]

    assert len({panel["id"] for panel in drawn}) == len(drawn)
    assert len({panel["title"] for panel in drawn}) == len(drawn)
    assert len(set(cells)) == len(cells)
    assert all(x < 24 for x, _ in cells)


def test_every_alert_has_a_severity_and_a_runbook_line():
    rules = [
        rule
        for group in yaml.safe_load((RECIPE / "alerts.yml").read_text())["groups"]
        for rule in group["rules"]
    ]

    assert {rule["labels"]["severity"] for rule in rules} == {"critical", "warning"}
    assert all(len(rule["annotations"]["runbook"]) > 40 for rule in rules)


def test_settings_that_the_recipe_names_are_settings():
    known = set(describe(Config()))
    files = [path for path in RECIPE.iterdir() if path.suffix in (".md", ".yml", ".yaml")]
    named = {
        (path.name, setting) for path in files for setting in SETTING.findall(path.read_text())
    }

    assert not {pair for pair in named if pair[1] not in known}
    assert len(named) > 10


def test_the_collectors_pipelines_are_made_of_what_is_configured():
    made = yaml.safe_load((RECIPE / "collector.yaml").read_text())
    used: dict[str, set[str]] = {"extensions": set(made["service"]["extensions"])}
    for pipeline in made["service"]["pipelines"].values():
        assert pipeline["processors"][0] == "memory_limiter"
        for kind, names in pipeline.items():
            used.setdefault(kind, set()).update(names)

    assert set(made["service"]["pipelines"]) == {"traces", "metrics"}
    assert used == {kind: set(made[kind]) for kind in used}


COLLECTOR_KEYS = {
    "receivers": {"otlp": {"protocols.grpc.endpoint"}},
    "processors": {
        "memory_limiter": {"check_interval", "limit_mib", "spike_limit_mib"},
        "attributes": {"actions"},
    },
    "exporters": {
        "otlp_grpc": {
            "endpoint",
            "tls.insecure",
            "sending_queue.queue_size",
            "retry_on_failure.max_elapsed_time",
        },
        "prometheus": {"endpoint", "metric_expiration", "without_scope_info"},
    },
    "extensions": {"health_check": {"endpoint"}},
}
"""By kind and type, what the components' published schemas know, as far as it is used here."""


def test_the_collector_is_told_only_what_its_components_know():
    made = yaml.safe_load((RECIPE / "collector.yaml").read_text())

    assert set(made) == {*COLLECTOR_KEYS, "service"}
    for kind, types in COLLECTOR_KEYS.items():
        for name, settings in made[kind].items():
            assert set(leaves(settings)) <= types[name.partition("/")[0]], name


def leaves(settings: Mapping[str, object], above: str = "") -> Iterator[str]:
    """The settings by their whole names."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"


def test_the_collector_drops_all_that_was_said():
    made = yaml.safe_load((RECIPE / "collector.yaml").read_text())
    dropped = {action["key"] for action in made["processors"]["attributes/no_content"]["actions"]}

    assert dropped == {conventions.GEN_AI_INPUT_MESSAGES, conventions.GEN_AI_OUTPUT_MESSAGES}


def test_prometheus_reads_where_the_readme_lets_servers_listen():
    (job,) = yaml.safe_load((RECIPE / "prometheus.yml").read_text())["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]

    assert job["job_name"] == "antiphon"
    assert f"telemetry.prometheus_listen={target}" in (RECIPE / "README.md").read_text()
