"""`antiphon chat` where the server goes away in the midst of an answer."""

import asyncio

import grpc
from antiphon.v1 import model_pb2, model_pb2_grpc, session_pb2

from support.breaking_sessions import Break, BreakingSessions
from support.scripted_services import serving
from support.terminal import CTRL_C, CTRL_D, Terminal

NOTE = " (reconnecting...)"


class OneModel(model_pb2_grpc.ModelServiceServicer):
    async def ListModels(self, request, context):
        return model_pb2.ListModelsResponse(models=[model_pb2.Model(name="models/tiny")])


class Away(BreakingSessions):
    """Stays away behind its first stream until it is told to come back."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.is_back = asyncio.Event()
        self.num_refused = 0

    async def Converse(self, request_iterator, context):
        if self.openings and not self.is_back.is_set():
            self.num_refused += 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "connection refused")
        async for response in super().Converse(request_iterator, context):
            yield response


async def at_terminal(servicer, dialogue):
    async with serving(sessions=servicer, models=OneModel()) as target:

        def run():
            words = ["chat", "--target", target]
            with Terminal("antiphon_cli.main", words, environ={}) as terminal:
                return dialogue(terminal)

        return await asyncio.to_thread(run)


def leave(terminal):
    terminal.expect("> ")
    terminal.type(CTRL_D)
    return terminal.wait()


async def test_an_answer_goes_on_behind_breaks_and_crashes_as_if_there_were_none():
    def dialogue(terminal):
        terminal.expect("> ")
        terminal.type("count\n")
        answer = terminal.expect("four\n")
        return answer, leave(terminal)

    breaks = [Break(behind=4), Break(behind=3, crashes=True), Break(behind=5)]
    servicer = BreakingSessions(lambda *_: ("one ", "two ", "three ", "four"), breaks)
    answer, status = await at_terminal(servicer, dialogue)

    assert (answer, status) == ("one two three ", 0)
    assert len(servicer.openings) == 4
    assert list(servicer.num_runs.values()) == [1]


async def test_a_long_absence_is_noted_and_the_note_taken_back():
    loop = asyncio.get_running_loop()

    def dialogue(terminal):
        terminal.expect("> ")
        terminal.type("count\n")
        terminal.expect("one two" + NOTE)
        loop.call_soon_threadsafe(servicer.is_back.set)
        between = terminal.expect(" three")
        return between, leave(terminal)

    servicer = Away(lambda *_: ("one ", "two", " three"), [Break(behind=5)])
    between, status = await at_terminal(servicer, dialogue)

    back = "\b" * len(NOTE)
    assert between == back + " " * len(NOTE) + back
    assert status == 0
    assert servicer.num_refused > 0


async def test_a_person_can_stop_waiting_for_a_server_that_is_gone():
    def dialogue(terminal):
        terminal.expect("> ")
        terminal.type("count\n")
        terminal.expect("one two" + NOTE)
        terminal.type(CTRL_C)
        terminal.expect("(stopping once the server is back; Ctrl-C again does not wait)")
        terminal.type(CTRL_C)
        terminal.expect("(no longer waiting for its end)")
        return leave(terminal)

    servicer = Away(lambda *_: ("one ", "two", " three"), [Break(behind=5)])

    assert await at_terminal(servicer, dialogue) == 0


async def test_an_answer_that_was_lost_is_begun_again_before_the_persons_eyes():
    answers = {1: ("Good ", "day, Ada"), 2: ("Good ", "night")}

    def dialogue(terminal):
        terminal.expect("> ")
        terminal.type("greet\n")
        terminal.expect("Good day, Ada\n(the server lost its answer and has begun again)\n")
        rest = terminal.expect("\n")
        return rest, leave(terminal)

    servicer = BreakingSessions(lambda _, epoch: answers[epoch], [Break(behind=5, crashes=True)])

    assert await at_terminal(servicer, dialogue) == ("Good night", 0)


async def test_a_session_that_another_takes_is_left_and_the_chat_says_how_to_take_it_back():
    class Taken(BreakingSessions):
        async def Converse(self, request_iterator, context):
            if self.openings:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "another drives it")
            async for response in super().Converse(request_iterator, context):
                yield response

    def dialogue(terminal):
        terminal.expect("> ")
        terminal.type("count\n")
        terminal.expect("antiphon: another drives it")
        return leave(terminal)

    servicer = Taken(lambda *_: ("one ", "two"), [Break(behind=4)])

    assert await at_terminal(servicer, dialogue) == 0
    assert isinstance(servicer.frames[0].open, session_pb2.OpenSession)
