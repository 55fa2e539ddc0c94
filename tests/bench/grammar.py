"""Measures how truly and how fast schemas are enforced, beside each library alone.

Each schema is compiled for the model's tokenizer, and its instances are walked token by token with
the mask filled before each. A schema passes where it is taken, every valid instance is producible
and no invalid one is. Properties come in the order in which the schema names them, and numbers in
any spelling; invalid ones are tried in odd spellings too. Prints a table, and as the last line one
JSON object: ours, then what each library does alone.

A file of cases has lines as MaskBench has them, `{"name", "schema", "tests": [{"valid", "data"}]}`;
MaskBench is published with the JSONSchemaBench schemas by the guidance-ai project. A directory is
one of the official JSON Schema test suite, such as its tests/draft2020-12.
"""

import argparse
import json
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.grammar_matchers import Candidate, Vocabulary, compiler
from bench.grammar_walks import STOP, Verdict, Walker
from bench.grammar_workers import Crash, Overrun, Workers
from support.default_model import default_checkpoint
from support.schema_cases import Case, read_maskbench, read_suite

_MORE_BYTES = 4 << 30
"""What a worker may take beyond what it begins with."""
Figures = dict[str, float]


def main() -> int:
    """Runs the benchmark; returns the exit status."""
    arguments = _arguments()
    cases = _cases(arguments)
    vocabulary = Vocabulary(arguments.checkpoint or default_checkpoint())
    walkers = {
        candidate: Walker(
            vocabulary,
            compiler(candidate, vocabulary, arguments.max_blank),
            num_repeats=arguments.repeats,
        )
        for candidate in arguments.only
    }
    verdicts = _run(arguments, cases, walkers)
    if arguments.failures:
        _print_failures(cases, verdicts, arguments.failures)
    if arguments.by_group:
        _print_groups(cases, verdicts)
    figures = {candidate: _figures(found.values()) for candidate, found in verdicts.items()}
    _print_table(figures)
    first = figures.get(Candidate.OURS, {})
    alone = {c.value: f for c, f in figures.items() if c is not Candidate.OURS}
    print(json.dumps(first | alone))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("path", type=Path, help="a file of cases, or a directory of the suite")
    parser.add_argument("--checkpoint", type=Path, help="whose tokenizer; the default model's")
    parser.add_argument("--only", type=Candidate, nargs="+", default=list(Candidate))
    parser.add_argument("--match", default="", help="only cases with this in their name")
    parser.add_argument("--first", type=int, help="only so many cases")
    parser.add_argument("--every", type=int, default=1, help="every n-th case")
    parser.add_argument("--workers", type=int, default=1, help="processes side by side")
    parser.add_argument("--limit-s", type=float, default=60.0, help="time for a schema")
    parser.add_argument("--repeats", type=int, default=1, help="of each text; the least counts")
    parser.add_argument("--max-blank", type=int, default=16, help="blanks in a row")
    parser.add_argument("--failures", type=Candidate, nargs="+", default=[], help="list them")
    parser.add_argument("--by-group", action="store_true", help="shares by keyword or source")
    return parser.parse_args()


def _cases(arguments: argparse.Namespace) -> list[Case]:
    read = read_suite if arguments.path.is_dir() else read_maskbench
    chosen = [case for case in read(arguments.path) if arguments.match in case.name]
    return chosen[:: arguments.every][: arguments.first]


def _run(
    arguments: argparse.Namespace, cases: Sequence[Case], walkers: dict[Candidate, Walker]
) -> dict[Candidate, dict[int, Verdict]]:
    tasks = [(candidate, number) for number in range(len(cases)) for candidate in walkers]
    workers = Workers[tuple[Candidate, int], Verdict](
        lambda task: walkers[task[0]].walk(cases[task[1]]),
        num_workers=arguments.workers,
        limit_s=arguments.limit_s,
        more_bytes=_MORE_BYTES,
    )
    verdicts: dict[Candidate, dict[int, Verdict]] = defaultdict(dict)
    for number, answer in workers.map(tasks):
        candidate, case = tasks[number]
        match answer:
            case Crash():
                verdicts[candidate][case] = Verdict(crash=str(answer))
            case Overrun():
                verdicts[candidate][case] = Verdict(is_timeout=True)
            case _:
                verdicts[candidate][case] = answer
        if sys.stderr.isatty():
            print(f"\r{number + 1}/{len(tasks)}", end="", file=sys.stderr)
    return verdicts


def _figures(verdicts: Iterable[Verdict]) -> Figures:
    verdicts = list(verdicts)
    compiled_ms = sorted(each.compile_ns / 1e6 for each in verdicts)
    masks_us = sorted(ns / 1e3 for each in verdicts for ns in each.mask_ns)
    return {
        "schemas": len(verdicts),
        "refused": sum(each.refusal is not None for each in verdicts),
        "passing_share": _share(each.passes for each in verdicts),
        "passing_share_as_written": _share(each.passes_as_written for each in verdicts),
        "invalid_accepted": sum(bool(each.invalid_accepted) for each in verdicts),
        "invalid_accepted_as_written": sum(
            each.invalid_accepted_as_written > 0 for each in verdicts
        ),
        "valid_rejected": sum(bool(each.valid_rejected) for each in verdicts),
        "crashes": sum(each.crash is not None for each in verdicts),
        "timeouts": sum(each.is_timeout for each in verdicts),
        "compile_p50_ms": _quantile(compiled_ms, 0.5),
        "compile_p99_ms": _quantile(compiled_ms, 0.99),
        "mask_avg_us": round(statistics.fmean(masks_us), 1) if masks_us else 0.0,
        "mask_p99_us": _quantile(masks_us, 0.99),
        "masks": len(masks_us),
    }


def _share(each: Iterable[bool]) -> float:
    return round(statistics.fmean(each), 4)


def _quantile(ordered: Sequence[float], share: float) -> float:
    return round(ordered[min(int(share * len(ordered)), len(ordered) - 1)], 2) if ordered else 0.0


def _print_table(figures: dict[Candidate, Figures]) -> None:
    print(f"{'':28}" + "".join(f"{candidate:>12}" for candidate in figures))
    for name in next(iter(figures.values())):
        print(f"{name:28}" + "".join(f"{each[name]:>12}" for each in figures.values()))


def _print_failures(
    cases: Sequence[Case],
    verdicts: dict[Candidate, dict[int, Verdict]],
    candidates: Sequence[Candidate],
) -> None:
    for candidate in candidates:
        for number, verdict in sorted(verdicts[candidate].items()):
            if verdict.passes:
                continue
            print(f"== {candidate} {cases[number].name}")
            if verdict.refusal is not None:
                print(f"   refused: {verdict.refusal[:300]}")
            if verdict.crash is not None:
                print(f"   crash: {verdict.crash[:300]}")
            if verdict.is_timeout:
                print("   out of time")
            for text in verdict.invalid_accepted[:3]:
                print(f"   invalid accepted: {text[:300]}")
            for text in verdict.valid_rejected[:3]:
                start = max(text.index(STOP) - 150, 0)
                print(f"   valid rejected: …{text[start : start + 300]}")


def _print_groups(cases: Sequence[Case], verdicts: dict[Candidate, dict[int, Verdict]]) -> None:
    for candidate, found in verdicts.items():
        total, passing, refused = Counter[str](), Counter[str](), Counter[str]()
        for number, verdict in found.items():
            group = cases[number].group
            total[group] += 1
            passing[group] += verdict.passes
            refused[group] += verdict.refusal is not None
        for group, count in sorted(total.items()):
            wrong = count - passing[group] - refused[group]
            print(
                f"{candidate} {group}: {passing[group]}/{count} pass, "
                f"{refused[group]} refused, {wrong} wrong"
            )


if __name__ == "__main__":
    sys.exit(main())
