"""Kills a server again and again while clients talk to it, and checks that it keeps its word.

Prints, as the last line, one JSON object; the exit status is 1 where anything in it is wrong.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from antiphon_server.text.tokenizer import Tokenizer
from support.chat_templates import CHATML_WITH_TOOLS
from support.fake_engine_process import Behaviour, fake_engine_command
from support.hollow_checkpoint import save_hollow_checkpoint
from support.zygote import launcher_command
from torture.calls import RefusedError
from torture.client import Client
from torture.killer import Killer
from torture.plans import CALLS, Scale
from torture.side_by_side import torture_side_by_side
from torture.tally import Kind, Tally, ViolationError
from torture.trusting_checker_process import trusting_checker_command
from torture.victim import Victim
from torture.zygote import zygote_command

_SETTINGS = (
    "engine.restart_delay_s=0.01",
    "sessions.max_attempts=1000",
    "sessions.max_sessions=1000000",
    # Turns are short: most that are struck shall have a checkpoint.
    "sessions.checkpoint_tokens=4",
    "sessions.checkpoint_interval_s=0.02",
    # Each start would pay for it, and few lives have a turn that needs it.
    "constraints.load_at_start=false",
)
_CONTEXT_TOKENS = 200_000
_CALM_END_S = 4.0
_SETTLE_LIMIT_S = 8.0
"""Less than a turn lasts that is stopped, so that one which goes on unseen is found."""
_MAX_NEW_FILES = 8
"""Descriptors more than at the start: threads that read the store open it when they first do."""
_SHOWN_FAULTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Torture:
    """What is done to the server."""

    num_kills: int
    num_clients: int
    seed: int
    real: bool = False
    num_run_again: int = 100
    forked: bool = False
    """Whether the tests' zygote forks the server's processes, which then start in a moment."""
    tools_share: float = 0.4
    """Of sessions, which offer tools."""


async def torture(spec: Torture, directory: Path) -> Tally:
    """Returns what was counted and found."""
    tally = Tally(seed=spec.seed)
    victim = await _prepare(spec, directory)
    try:
        await victim.start()
        assert await victim.wait_up(), victim.log_path.read_text()[-2000:]
        before = await _holdings(victim)
        clients = await _live_through(spec, victim, tally)
        await _look_back(spec, clients, tally)
        for client in clients:
            await client.close()
        await _check_leaks(victim, tally, before)
    finally:
        await victim.close()
    num_tracebacks = victim.log_path.read_text().count("Traceback")
    for _ in range(num_tracebacks):
        tally.report(ViolationError(Kind.LOG, f"see {victim.log_path}"))
    return tally


def check_tally(tally: Tally) -> None:
    """Fails where something was wrong, or where nothing was struck."""
    assert tally.good, (tally.seed, tally.faults[:5], list(tally.events)[-100:])
    assert tally.counts["turns_acknowledged"]
    assert tally.counts["turns_struck"]
    assert tally.counts["streams_resumed"]
    assert tally.counts["calls"] or not tally.counts["sessions_with_tools"]


async def _prepare(spec: Torture, directory: Path) -> Victim:
    zygote = [*launcher_command(), "torture.zygote"] if spec.forked else zygote_command()
    if spec.real:
        from support.tiny_checkpoints import TinyModel, make_checkpoint
        from support.tiny_tokenizers import save_byte_level_tokenizer

        checkpoint = make_checkpoint(directory / "model", TinyModel(context_tokens=8192))
        save_byte_level_tokenizer(checkpoint, chat_template=CHATML_WITH_TOOLS)
        engine_settings = ["engine.num_threads=1", "engine.kv_cache_tokens=65536"]
        return await Victim.prepare(
            directory,
            [f"model.source={checkpoint}", *engine_settings, *_SETTINGS],
            [*launcher_command(), "antiphon_engine"] if spec.forked else None,
            command=zygote,
        )
    checkpoint = save_hollow_checkpoint(
        directory / "model", context_tokens=_CONTEXT_TOKENS, chat_template=CHATML_WITH_TOOLS
    )
    tokenizer = Tokenizer.load(checkpoint)

    def ids_of(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False, allow_special_tokens=True))

    behaviour = Behaviour(
        context_tokens=_CONTEXT_TOKENS,
        words=ids_of(" harbour morning ferry lower pier weather"),
        calls=[ids_of(call) for call in CALLS],
    )
    engine = fake_engine_command(directory / "behaviour.json", behaviour)
    checker = trusting_checker_command()
    if spec.forked:
        engine = [*launcher_command(), "support.fake_engine_process", *engine[3:]]
        checker = [*launcher_command(), "torture.trusting_checker_process"]
    return await Victim.prepare(
        directory,
        [f"model.source={checkpoint}", *_SETTINGS],
        engine,
        checker,
        zygote,
    )


async def _live_through(spec: Torture, victim: Victim, tally: Tally) -> list[Client]:
    """Lets clients talk while the server is killed; all have come to rest then."""
    scale = Scale(tools_share=spec.tools_share)
    if spec.real:
        # Its model is random: the grammar alone makes it call.
        scale = replace(scale, temperature=0.0, most_tokens=40, endless_tokens=6000, must_call=True)
    clients = [
        Client(number, victim, tally, scale=scale, seed=spec.seed)
        for number in range(spec.num_clients)
    ]
    stopped = asyncio.Event()
    killer = Killer(victim, tally, seed=spec.seed, calm_s=2.0 if spec.real else 0.3)
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.live(stopped))
        await killer.kill(spec.num_kills)
        # Long enough for the last server to leak what the next kill would have taken along.
        await asyncio.sleep(_CALM_END_S)
        stopped.set()
    return clients


async def _look_back(spec: Torture, clients: Sequence[Client], tally: Tally) -> None:
    """Compares every session with its notes, and runs some of the turns again."""
    rng = random.Random(f"{spec.seed}/again")
    left = spec.num_run_again
    for client in clients:
        for session in [*client.sessions, *client.retired]:
            if session.broken or tally.hopeless:
                continue
            await client.guarded(session, "audit")
            places = [
                i for i, turn in enumerate(session.history) if turn.generates and not turn.stopped
            ]
            if left > 0 and places and not session.broken:
                left -= 1
                try:
                    place = rng.choice(places)
                    await client.auditor.run_again(session, place, f"{session.session_id}-again")
                except (ViolationError, RefusedError) as error:
                    tally.report(ViolationError(Kind.TEXT, f"run again: {error}"))


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a server holds."""

    files: Counter[str]
    num_strays: int
    num_blocks_used: int
    store_files: list[str]


async def _holdings(victim: Victim) -> Holdings:
    stats = await victim.stats()
    # Requests that wait or rest would hold blocks as soon as they run.
    num_busy = stats.num_blocks_used + stats.num_running + stats.num_waiting + stats.num_paused
    return Holdings(
        files=victim.open_files(),
        num_strays=await victim.num_strays(),
        num_blocks_used=num_busy,
        store_files=victim.store_files(),
    )


async def _check_leaks(victim: Victim, tally: Tally, before: Holdings) -> None:
    """Waits until the server holds no more than at the start, and reports what it keeps."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + _SETTLE_LIMIT_S
    while True:
        now = await _holdings(victim)
        new_files = max(0, (now.files - before.files).total() - _MAX_NEW_FILES)
        others = [name for name in now.store_files if name not in before.store_files]
        found = {
            Kind.FILE: new_files + len(others),
            Kind.PROCESS: now.num_strays,
            Kind.BLOCK: now.num_blocks_used,
        }
        if not any(found.values()) or loop.time() > end_s:
            break
        await asyncio.sleep(0.2)
    for kind, number in found.items():
        for _ in range(number):
            tally.report(ViolationError(kind, f"{number} more than at the start: {now}"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--real", action="store_true", help="with the real engine")
    parser.add_argument("--keep", type=Path, help="a folder for store and log, which stay")
    parser.add_argument(
        "--servers", type=int, default=1, help="so many at once, which share the kills"
    )
    options = parser.parse_args(arguments)
    if options.servers > 1:
        if options.keep:
            parser.error("--keep takes what one server leaves; leave it out with --servers")
        figures, good = torture_side_by_side(
            min(options.servers, options.kills),
            num_kills=options.kills,
            seed=options.seed,
            arguments=[f"--clients={options.clients}", *(["--real"] if options.real else [])],
        )
        print(json.dumps(figures))
        return 0 if good else 1
    spec = Torture(
        num_kills=options.kills, num_clients=options.clients, seed=options.seed, real=options.real
    )
    print(f"seed {spec.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="antiphon-torture-") as folder:
        directory = options.keep or Path(folder)
        directory.mkdir(exist_ok=True)
        tally = asyncio.run(torture(spec, directory))
        (directory / "events.log").write_text("\n".join(tally.events))
        if not tally.good:
            print("\n".join(tally.events))
            log = (directory / "server.log").read_text().splitlines()
            print("the server's log ends with:", *log[-40:], sep="\n")
    for fault in tally.faults[:_SHOWN_FAULTS]:
        print(fault)
    print(json.dumps(tally.figures()))
    return 0 if tally.good else 1


if __name__ == "__main__":
    sys.exit(main())
