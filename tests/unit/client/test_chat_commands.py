"""What a person can ask of `antiphon chat` beside an answer."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from antiphon.v1 import model_pb2, model_pb2_grpc, session_pb2, types_pb2

from antiphon_cli.slash_commands import Command, WrongCommand, read_command
from antiphon_client import beginning, user
from support.scripted_services import serving
from support.scripted_sessions import Conversing, completed, delta, echo
from support.terminal import CTRL_D, Terminal


class OneModel(model_pb2_grpc.ModelServiceServicer):
    async def ListModels(self, request, context):
        return model_pb2.ListModelsResponse(models=[model_pb2.Model(name="models/tiny")])


def turn(number, text):
    """Returns the turn of this number, behind the one before."""
    return session_pb2.Turn(
        name=f"sessions/s/turns/t{number}",
        parent_turn=f"sessions/s/turns/t{number - 1}" if number > 1 else "",
        input=[user(text)],
        output=types_pb2.Output(text=text.upper()),
    )


class Talked(Conversing):
    """A session with two turns in its history; notes what is asked of it."""

    def __init__(self):
        super().__init__(echo)
        self.asked = []

    async def ListTurns(self, request, context):
        turns = [turn(1, "hello"), turn(2, "bye")]
        return session_pb2.ListTurnsResponse(turns=turns[:: -1 if request.newest_first else 1])

    async def ForkSession(self, request, context):
        self.asked.append(request)
        return session_pb2.Session(name=f"sessions/{request.session_id or 'f'}")

    async def RewindSession(self, request, context):
        self.asked.append(request)
        return session_pb2.Session(name=request.name)

    async def ListSessions(self, request, context):
        sessions = [session_pb2.Session(name="sessions/s", num_turns=2)]
        sessions += [session_pb2.Session(name=f"sessions/{i}", num_turns=1) for i in range(25)]
        return session_pb2.ListSessionsResponse(sessions=sessions)


@asynccontextmanager
async def chatting(servicer):
    async with serving(sessions=servicer, models=OneModel()) as target:

        async def run(*steps):
            """Types and expects in turn, at a chat about the session s."""

            def at_terminal():
                words = ["chat", "--target", target, "--session", "s"]
                with Terminal("antiphon_cli.main", words, environ={}) as terminal:
                    for typed, expected in steps:
                        terminal.expect("> ")
                        terminal.type(typed + "\n")
                        terminal.expect(expected)
                    terminal.expect("> ")
                    terminal.type(CTRL_D)
                    return terminal.wait()

            return await asyncio.to_thread(at_terminal)

        yield run


async def test_a_conversation_is_forked_and_goes_on_in_the_copy():
    servicer = Talked()
    async with chatting(servicer) as run:
        status = await run(
            ("/fork other", "Now in other; s stays as it was."), ("good day", "goodday\n")
        )

    (fork,) = servicer.asked
    opened = [frame.open.name for frame in servicer.frames if frame.HasField("open")]
    assert status == 0
    assert (fork.name, fork.session_id) == ("sessions/s", "other")
    assert opened == ["sessions/s", "sessions/other"]


async def test_the_last_messages_are_taken_back():
    servicer = Talked()
    async with chatting(servicer) as run:
        await run(
            ("/rewind", "Taken back: > bye"),
            ("/rewind 2", "Taken back: > hello"),
            ("/rewind 3", "Only 2 can be taken back."),
            ("/rewind all", "/rewind takes how many messages"),
        )

    first, second = servicer.asked
    assert first.to.turn == "sessions/s/turns/t1"
    assert second.to == beginning()


async def test_nothing_can_be_taken_back_where_all_was():
    class Emptied(Talked):
        async def ListTurns(self, request, context):
            return session_pb2.ListTurnsResponse()

    servicer = Emptied()
    async with chatting(servicer) as run:
        status = await run(("/rewind", "Nothing was said yet."))

    assert status == 0
    assert servicer.asked == []


async def test_the_last_message_is_answered_again_in_its_place():
    servicer = Talked()
    async with chatting(servicer) as run:
        await run(("/again", "bye\n"))

    (again,) = [frame.generate for frame in servicer.frames if frame.HasField("generate")]
    assert list(again.items) == [user("bye")]
    assert again.rewind_to.turn == "sessions/s/turns/t1"


async def test_an_answer_that_was_cut_is_gone_on_with():
    async def cut(frame, context):
        turn_id = frame.generate.turn_id
        yield delta(turn_id, "end" if frame.generate.continue_answer else "begin")
        yield completed(turn_id, types_pb2.FINISH_REASON_MAX_OUTPUT_TOKENS)

    servicer = Talked()
    servicer.react = cut
    async with chatting(servicer) as run:
        await run(
            ("tell", "begin\n(cut at --max-tokens; /continue goes on)"), ("/continue", "end\n")
        )


async def test_an_answer_that_came_to_its_end_is_not_gone_on_with():
    class Ended(Talked):
        async def ListTurns(self, request, context):
            output = types_pb2.Output(text="BYE", finish_reason=types_pb2.FINISH_REASON_STOP)
            turns = [session_pb2.Turn(name="sessions/s/turns/t1", output=output)]
            return session_pb2.ListTurnsResponse(turns=turns)

    servicer = Ended()
    async with chatting(servicer) as run:
        await run(("/continue", "there is nothing to go on with."))

    assert not [frame for frame in servicer.frames if frame.HasField("generate")]


async def test_conversations_are_listed_and_the_present_one_marked():
    async with chatting(Talked()) as run:
        await run(
            ("/sessions", "* s "),
            ("/sessions", "hello"),
            ("/sessions", "`antiphon session list` shows the others."),
        )


async def test_help_lists_the_commands_and_a_wrong_one_is_told_its_nearest():
    async with chatting(Talked()) as run:
        await run(
            ("/help", "/rewind [N]"),
            ("/frok it", "There is no command /frok; did you mean /fork?"),
            ("/what", "There is no command /what; /help lists them."),
        )


def test_what_only_begins_like_a_command_is_something_to_say():
    assert read_command("/usr/bin holds what?") is None
    assert read_command("hello") is None
    assert read_command("/rewind 3") == Command("/rewind", "3")
    assert read_command("/exit") == Command("/quit")


def test_a_command_that_takes_nothing_refuses_words_behind_it():
    with pytest.raises(WrongCommand, match="/again takes nothing after it"):
        read_command("/again please")
