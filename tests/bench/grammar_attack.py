"""Attacks the pipeline with random schemas for as long as one likes; prints what it finds, small.

Each finding is a schema, cut down as far as the fault stays, and a value that it forbids and that
is producible, or the other way round. The last line is one JSON object.
"""

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.json_spellings import Json, Spelling, write
from support.random_schemas import SchemaMaker
from support.schema_attack import Refused, wrong_drawings, wrong_values
from support.schema_oracle import is_schema

_NUM_TRIES = 12
"""Seeds that a smaller schema is attacked with before it counts as sound."""


def main() -> int:
    """Attacks until the time is up; returns 1 where something was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--findings", type=int, default=20, help="enough of them")
    parser.add_argument("--refusals", action="store_true", help="tell why schemas were refused")
    arguments = parser.parse_args()
    ends_at, seed = monotonic() + arguments.seconds, arguments.seed
    refusals, found = Counter[str](), dict[str, str]()
    while monotonic() < ends_at and len(found) < arguments.findings:
        schema = SchemaMaker(random.Random(seed)).make()
        try:
            wrong = _first_wrong(schema, seed)
        except Refused as refused:
            refusals[str(refused)[:90]] += 1
            wrong = None
        if wrong is not None:
            small, its_wrong = _smallest(schema, wrong)
            text = write(small, Spelling())
            if text not in found:
                found[text] = its_wrong
                print(f"seed {seed}: {its_wrong}\n    {text}", flush=True)
        seed += 1
    if arguments.refusals:
        for reason, count in refusals.most_common(40):
            print(f"{count:6} {reason}")
    num_refused = refusals.total()
    figures = {"schemas": seed - arguments.seed, "refused": num_refused, "wrong": len(found)}
    print(json.dumps(figures))
    return 1 if found else 0


def _first_wrong(schema: Json, seed: int) -> str | None:
    chooser = random.Random(seed)
    for wrongs in (wrong_values, wrong_drawings):
        try:
            for wrong in wrongs(schema, chooser):
                return wrong
        except Refused:
            raise
        except Exception as error:  # whatever it is, it is a finding
            return f"{type(error).__name__}: {error}"
    return None


def _smallest(schema: Json, wrong: str) -> tuple[Json, str]:
    """Returns a schema that is wrong and of which no part can be left out, and what is wrong."""
    for smaller in filter(is_schema, _smaller(schema)):
        for seed in range(_NUM_TRIES):
            try:
                its_wrong = _first_wrong(smaller, seed)
            except (Refused, KeyError):
                break
            if its_wrong is not None:
                return _smallest(smaller, its_wrong)
    return schema, wrong


def _smaller(value: Json) -> Iterator[Json]:
    """Yields values with one part less, the largest parts first."""
    match value:
        case dict():
            yield from (member for member in value.values() if isinstance(member, dict))
            for name, member in value.items():
                yield {other: value[other] for other in value if other != name}
                for smaller in _smaller(member):
                    yield {**value, name: smaller}
        case list():
            for index, item in enumerate(value):
                yield [*value[:index], *value[index + 1 :]]
                for smaller in _smaller(item):
                    yield [*value[:index], smaller, *value[index + 1 :]]


if __name__ == "__main__":
    sys.exit(main())
