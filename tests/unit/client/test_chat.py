import asyncio
import sys
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager
from types import MappingProxyType

import grpc
import pytest
from antiphon.v1 import model_pb2, model_pb2_grpc, session_pb2, types_pb2
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2

from antiphon_client import user
from support.scripted_services import refuse, serving
from support.scripted_sessions import Conversing, completed, delta, echo
from support.terminal import CTRL_C, CTRL_D, Terminal

CANCELLED = types_pb2.FINISH_REASON_CANCELLED


class OneModel(model_pb2_grpc.ModelServiceServicer):
    async def ListModels(self, request, context):
        return model_pb2.ListModelsResponse(models=[model_pb2.Model(name="models/tiny")])


class Sessions(Conversing):
    async def ListTurns(self, request, context):
        turn = session_pb2.Turn(input=[user("hello")], output=types_pb2.Output(text="good day"))
        return session_pb2.ListTurnsResponse(turns=[turn])


DIMMED = "\x1b[2mthinking\x1b[22m"


@asynccontextmanager
async def chatting(servicer, *, echoes=False, environ=MappingProxyType({}), forked=True):
    """Yields a function that runs a dialogue with `antiphon chat` and returns what it returns."""
    async with serving(sessions=servicer, models=OneModel()) as target:

        async def run(dialogue, *arguments):
            def at_terminal():
                words = ["chat", "--target", target, *arguments]
                terminal = Terminal(
                    "antiphon_cli.main", words, environ=environ, echoes=echoes, forked=forked
                )
                with terminal:
                    return dialogue(terminal)

            return await asyncio.to_thread(at_terminal)

        yield run


def leave(terminal):
    """Types Ctrl-D at the prompt; before it, the terminal takes it for itself."""
    terminal.expect("> ")
    terminal.type(CTRL_D)


async def test_a_chat_has_several_turns_and_says_how_to_come_back():
    def dialogue(terminal):
        terminal.expect("models/tiny")
        terminal.expect("> ")
        terminal.type("good morning\n")
        terminal.expect("goodmorning\n")
        terminal.expect("> ")
        terminal.type("and night\n")
        terminal.expect("andnight\n")
        leave(terminal)
        terminal.expect("antiphon chat --session s --target ")
        return terminal.wait()

    servicer = Conversing(echo)
    async with chatting(servicer) as run:
        status = await run(dialogue, "--instructions", "be brief", "--temperature", "0")

    opening, first, _ = servicer.frames
    assert status == 0
    assert opening.open.create.session.instructions == "be brief"
    assert first.generate.config.sampling.HasField("temperature")
    assert not first.generate.config.sampling.HasField("top_p")


async def piped(servicer, lines):
    """Returns the status, output and complaints of a chat whose lines come through a pipe."""
    async with serving(sessions=servicer, models=OneModel()) as target:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "antiphon_cli.main", "chat", "--target", target),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
        )
        written, complaints = await process.communicate(lines)
    return process.returncode, written, complaints


async def test_a_line_that_is_no_text_is_not_sent_and_the_chat_goes_on():
    status, written, complaints = await piped(Conversing(echo), b"caf\xe9\nhello\n")

    assert (status, written) == (0, b"hello\n")
    assert b"is no text" in complaints
    assert b"Traceback" not in complaints


async def full(frame, context):
    """Refuses the turns that ask for it as a server does whose disk is full."""
    if frame.generate.items[0].message.text != "no room":
        async for response in echo(frame, context):
            yield response
        return
    failure = types_pb2.Failure(
        code=grpc.StatusCode.UNAVAILABLE.value[0],
        message="The session store can't be used: it is full. Nothing was changed; try again.",
        reason="STORE_UNAVAILABLE",
        retry_delay=duration_pb2.Duration(seconds=1),
    )
    rejected = session_pb2.FrameRejected(frame_id=frame.frame_id, failure=failure)
    yield session_pb2.ConverseResponse(rejected=rejected)


@pytest.mark.parametrize("lines", [b"no room\n", b"no room\nhello\n", b"hello\nno room\n"])
async def test_a_pipe_with_a_message_that_failed_ends_with_status_1(lines):
    status, written, complaints = await piped(Conversing(full), lines)

    assert status == 1
    assert (b"hello" in written) == (b"hello" in lines)
    assert (
        "antiphon: The session store can't be used: it is full. Nothing was changed; "
        "try again in 1.0 s (STORE_UNAVAILABLE)\n"
    ) in complaints.decode()


async def test_a_person_has_seen_what_failed_and_leaves_with_status_0():
    def dialogue(terminal):
        terminal.expect("> ")
        terminal.type("no room\n")
        terminal.expect("STORE_UNAVAILABLE")
        leave(terminal)
        return terminal.wait()

    async with chatting(Conversing(full)) as run:
        assert await run(dialogue) == 0


async def until_cancelled(frame, context):
    if frame.HasField("cancel"):
        yield completed(frame.cancel.turn_id, CANCELLED)
    elif frame.generate.items[0].message.text == "count":
        yield delta(frame.generate.turn_id, "one two ")
    else:
        async for response in echo(frame, context):
            yield response


async def test_ctrl_c_stops_the_answer_and_not_the_chat():
    def dialogue(terminal):
        terminal.expect("> ")
        terminal.type("count\n")
        terminal.expect("one two ")
        terminal.type(CTRL_C)
        terminal.expect("(stopped)")
        terminal.expect("> ")
        terminal.type("still here\n")
        terminal.expect("stillhere")
        leave(terminal)
        return terminal.wait()

    servicer = Conversing(until_cancelled)
    async with chatting(servicer) as run:
        status = await run(dialogue)

    kinds = [frame.WhichOneof("frame") for frame in servicer.frames]
    assert status == 0
    assert kinds == ["open", "generate", "cancel", "generate"]


async def test_ctrl_c_at_the_prompt_leaves_nothing_behind_and_stays():
    def dialogue(terminal):
        terminal.expect("> ")
        terminal.type("half a li")
        terminal.type(CTRL_C)
        terminal.expect("half a li^C\n(Ctrl-D leaves)\n> ")
        terminal.type("whole\n")
        terminal.expect("whole\nthinking\nwhole\n")
        terminal.type("/quit\n")
        return terminal.wait()

    servicer = Conversing(echo)
    async with chatting(servicer, echoes=True) as run:
        assert await run(dialogue) == 0

    assert servicer.frames[1].generate.items == [user("whole")]


async def test_ctrl_c_right_behind_a_key_is_never_lost():
    def dialogue(terminal):
        terminal.expect("> ")
        for _ in range(200):
            terminal.type("x")
            terminal.type(CTRL_C)
            terminal.expect("x^C\n(Ctrl-D leaves)\n> ")
        terminal.type(CTRL_D)
        return terminal.wait()

    servicer = Conversing(echo)
    async with chatting(servicer, echoes=True) as run:
        assert await run(dialogue) == 0

    assert servicer.frames == []


@pytest.mark.parametrize("keys", ["x", "x\x1b"], ids=["inserting", "commanding"])
async def test_ctrl_c_at_the_prompt_is_understood_by_those_who_edit_as_in_vi(tmp_path, keys):
    (tmp_path / "inputrc").write_text("set editing-mode vi\n")
    environ = {"INPUTRC": str(tmp_path / "inputrc")}

    def dialogue(terminal):
        terminal.expect("> ")
        terminal.type(keys)
        terminal.type(CTRL_C)
        terminal.expect("^C")
        terminal.expect("(Ctrl-D leaves)\n> ")
        terminal.type("whole\n")
        terminal.expect("whole\n")
        leave(terminal)
        return terminal.wait()

    servicer = Conversing(echo)
    async with chatting(servicer, echoes=True, environ=environ, forked=False) as run:
        assert await run(dialogue) == 0

    assert servicer.frames[1].generate.items == [user("whole")]


async def test_a_line_can_be_called_back_and_one_given_up_is_not():
    up = "\x10"

    def dialogue(terminal):
        terminal.expect("> ")
        terminal.type("first\n")
        terminal.expect("first\n")
        terminal.expect("> ")
        terminal.type("not this")
        terminal.type(CTRL_C)
        terminal.expect("(Ctrl-D leaves)\n> ")
        terminal.type(up + "\n")
        terminal.expect("first\nthinking\nfirst\n")
        assert DIMMED in terminal.raw
        leave(terminal)
        return terminal.wait()

    servicer = Conversing(echo)
    async with chatting(servicer, echoes=True) as run:
        assert await run(dialogue) == 0

    assert [frame.generate.items for frame in servicer.frames[1:]] == [[user("first")]] * 2


async def test_a_conversation_is_resumed_by_name_and_its_history_shown():
    def dialogue(terminal):
        terminal.expect("0 turns so far")
        terminal.type("/history\n")
        terminal.expect("> hello\ngood day\n")
        leave(terminal)
        return terminal.wait()

    servicer = Sessions(echo)
    async with chatting(servicer) as run:
        assert await run(dialogue, "--session", "s") == 0

    assert servicer.frames[0].open.name == "sessions/s"


async def test_new_starts_another_session_and_nothing_is_created_without_a_message():
    def dialogue(terminal):
        terminal.expect("> ")
        terminal.type("/history\n")
        terminal.expect("Nothing was said yet.")
        terminal.type("first\n")
        terminal.expect("first\n")
        terminal.type("/new\n")
        terminal.expect("A new conversation.")
        terminal.type("/nonsense\n")
        terminal.expect("There is no command /nonsense")
        terminal.type("second\n")
        terminal.expect("second\n")
        leave(terminal)
        return terminal.wait()

    servicer = Conversing(echo)
    async with chatting(servicer) as run:
        assert await run(dialogue) == 0

    kinds = [frame.WhichOneof("frame") for frame in servicer.frames]
    assert kinds == ["open", "generate", "open", "generate"]


async def test_a_failed_turn_is_one_line_and_the_chat_goes_on():
    async def fail(frame, context):
        if frame.generate.items[0].message.text == "bad":
            failure = types_pb2.Failure(code=13, reason="INTERNAL", message="it broke")
            turn_event = session_pb2.TurnEvent(turn_id=frame.generate.turn_id, failed=failure)
            yield session_pb2.ConverseResponse(turn_event=turn_event)
        else:
            async for response in echo(frame, context):
                yield response

    def dialogue(terminal):
        terminal.expect("> ")
        terminal.type("bad\n")
        terminal.expect("antiphon: it broke (INTERNAL)\n")
        terminal.type("good\n")
        terminal.expect("good\n")
        leave(terminal)
        return terminal.wait()

    async with chatting(Conversing(fail)) as run:
        assert await run(dialogue) == 0


async def test_control_characters_of_the_model_do_not_reach_the_terminal():
    async def colourful(frame, context):
        yield delta(frame.generate.turn_id, "red: \x1b]0;title\x07 end")
        yield completed(frame.generate.turn_id)

    def dialogue(terminal):
        terminal.expect("> ")
        terminal.type("x\n")
        text = terminal.expect(" end")
        leave(terminal)
        terminal.wait()
        return text

    async with chatting(Conversing(colourful)) as run:
        assert await run(dialogue) == "red: �]0;title�"


async def test_a_session_that_is_not_there_ends_the_chat_with_one_line():
    class Empty(Conversing):
        async def Converse(self, request_iterator, context):
            await anext(request_iterator)
            await refuse(
                context,
                grpc.StatusCode.NOT_FOUND,
                "there is no sessions/x",
                error_details_pb2.ErrorInfo(reason="SESSION_NOT_FOUND"),
            )
            yield

    def dialogue(terminal):
        status = terminal.wait()
        return status, terminal.written.splitlines()[-1]

    async with chatting(Empty()) as run:
        status, last = await run(dialogue, "--session", "x")

    assert (status, last) == (1, "antiphon: there is no sessions/x (SESSION_NOT_FOUND)")
