"""What Prometheus would read of a server."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from antiphon_server.listen import Address, SocketAddress, TcpAddress

Series = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    headers: Mapping[str, str]
    body: str


async def http(
    address: Address, head: str = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", **how: object
) -> HttpAnswer:
    """Sends the head of a request as it stands, and returns the answer."""
    if isinstance(address, TcpAddress):
        connecting = asyncio.open_connection(address.host, address.port, **how)  # type: ignore[arg-type]
    else:
        assert isinstance(address, SocketAddress)
        connecting = asyncio.open_unix_connection(address.path)
    reader, writer = await connecting
    try:
        writer.write(head.encode("latin-1"))
        text = (await reader.read()).decode()
    finally:
        writer.close()
    first, _, rest = text.partition("\r\n")
    fields, _, body = rest.partition("\r\n\r\n")
    pairs = (line.partition(": ") for line in fields.split("\r\n"))
    return HttpAnswer(int(first.split()[1]), {key: value for key, _, value in pairs}, body)


async def scrape(address: Address) -> "Scraped":
    """Reads all metrics."""
    answer = await http(address)
    assert answer.status == 200, answer.body
    return Scraped.parse(answer.body)


@dataclass(frozen=True, slots=True)
class Scraped:
    """All series at one time."""

    series: Series

    @classmethod
    def parse(cls, text: str) -> "Scraped":
        samples = (
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        )
        series: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for sample in samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in series, f"{key} is told twice"
            series[key] = sample.value
        return cls(series)

    def sum(self, name: str, **labels: str) -> float:
        """Adds up the series of a name that have these labels."""
        wanted = set(labels.items())
        return sum(
            value for (key, has), value in self.series.items() if key == name and wanted <= has
        )

    def values(self, name: str) -> list[float]:
        return [value for (key, _), value in self.series.items() if key == name]

    def labels(self, name: str) -> list[dict[str, str]]:
        return [dict(has) for (key, has) in self.series if key == name]
