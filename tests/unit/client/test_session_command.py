"""`antiphon session`, over a service that keeps sessions in memory."""

import asyncio
import json

import grpc
import pytest
from antiphon.v1 import session_pb2, session_pb2_grpc, types_pb2
from google.protobuf import empty_pb2
from google.rpc import error_details_pb2

from antiphon_cli.main import main
from antiphon_client import archive, assistant, system, user
from support.scripted_services import refuse, serving

CALL = types_pb2.ToolCall(call_id="c", tool_name="weather", arguments_json='{"at": "Ulm"}')


class Keeping(session_pb2_grpc.SessionServiceServicer):
    """Keeps sessions, two of a page, and the items that came in each call."""

    def __init__(self, *, refuses_appends=False):
        self.sessions = {}
        self.turns = {}
        self.parts = []
        self.page_sizes = []
        self.refuses_appends = refuses_appends

    def keep(self, session, *turns):
        self.sessions[session.name] = session
        self.turns[session.name] = list(turns)

    async def CreateSession(self, request, context):
        session = session_pb2.Session()
        session.CopyFrom(request.session)
        session.name = f"sessions/{request.session_id or 'made'}"
        self.keep(session, session_pb2.Turn(input=request.items))
        self.parts.append(list(request.items))
        return session

    async def AppendTurn(self, request, context):
        if self.refuses_appends:
            info = error_details_pb2.ErrorInfo(reason="QUOTA_EXCEEDED")
            await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "too much", info)
        self.parts.append(list(request.append.items))
        return session_pb2.Turn()

    async def GetSession(self, request, context):
        if request.name not in self.sessions:
            info = error_details_pb2.ErrorInfo(reason="SESSION_NOT_FOUND")
            await refuse(context, grpc.StatusCode.NOT_FOUND, "there is none", info)
        return self.sessions[request.name]

    async def DeleteSession(self, request, context):
        del self.sessions[request.name]
        return empty_pb2.Empty()

    async def ListSessions(self, request, context):
        wanted = dict(request.labels).items()
        found = [each for each in self.sessions.values() if wanted <= dict(each.labels).items()]
        return session_pb2.ListSessionsResponse(sessions=found)

    async def ListTurns(self, request, context):
        self.page_sizes.append(request.page_size)
        if request.session not in self.turns:
            info = error_details_pb2.ErrorInfo(reason="SESSION_NOT_FOUND")
            await refuse(context, grpc.StatusCode.NOT_FOUND, "there is none", info)
        begin, size = int(request.page_token or 0), request.page_size or 2
        turns = self.turns[request.session][:: -1 if request.newest_first else 1]
        token = str(begin + size) if begin + size < len(turns) else ""
        page = turns[begin : begin + size]
        return session_pb2.ListTurnsResponse(turns=page, next_page_token=token)


@pytest.fixture
def kept():
    servicer = Keeping()
    session = session_pb2.Session(
        name="sessions/talk",
        instructions="be brief",
        labels={"owner": "ada"},
        num_turns=3,
        etag="9",
        fork_turn="sessions/old/turns/x",
    )
    answer = types_pb2.Output(text="Good day", reasoning="a greeting", tool_calls=[CALL])
    servicer.keep(
        session,
        session_pb2.Turn(name="sessions/talk/turns/a", input=[user("hello")], output=answer),
        session_pb2.Turn(name="sessions/talk/turns/b", input=[user("by the way")]),
        session_pb2.Turn(name="sessions/talk/turns/c", input=[user("caf\u00e9?\n")]),
    )
    servicer.keep(session_pb2.Session(name="sessions/other", num_turns=1))
    return servicer


async def antiphon(servicer, action, *words):
    async with serving(sessions=servicer) as target:
        argv = ["session", action, *words, "--target", target]
        return await asyncio.to_thread(main, argv)


async def test_sessions_are_listed_a_line_each(kept, capsys):
    assert await antiphon(kept, "list") == 0
    lines = capsys.readouterr().out.splitlines()

    assert [line.split()[:3] for line in lines] == [["talk", "3", "turns"], ["other", "1", "turn"]]


async def test_a_listed_session_tells_how_long_it_is_and_how_it_began(kept, capsys):
    long = session_pb2.Turn(input=[system("be\tkind"), user("what\x1b is\na " + "word " * 500)])
    long.usage.prompt_tokens, long.usage.output_tokens = 1_200, 34
    kept.keep(session_pb2.Session(name="sessions/long", num_turns=1, state="STATE_ACTIVE"), long)
    kept.keep(session_pb2.Session(name="sessions/empty"))
    kept.turns["sessions/talk"][-1].usage.prompt_tokens = 9
    assert await antiphon(kept, "list") == 0
    talk, other, long_line, empty = capsys.readouterr().out.splitlines()

    assert talk.split()[1:5] == ["3", "turns", "9", "tokens"]
    assert talk.endswith("  idle    hello")
    assert other.endswith("  idle")
    assert long_line.split()[1:5] == ["1", "turn", "1,234", "tokens"]
    assert long_line.endswith(
        "  active  what\N{REPLACEMENT CHARACTER} is a word word word word word word word w…"
    )
    assert empty.split()[1:3] == ["0", "turns"]
    assert set(kept.page_sizes) == {1}


async def test_a_session_that_is_deleted_while_it_is_listed_is_told_without_its_words(kept, capsys):
    del kept.turns["sessions/talk"]
    assert await antiphon(kept, "list") == 0

    assert capsys.readouterr().out.splitlines()[0].endswith("  idle")


async def test_sessions_are_listed_by_label_and_as_json(kept, capsys):
    await antiphon(kept, "list", "--label", "owner=ada", "--json")
    (line,) = capsys.readouterr().out.splitlines()

    assert json.loads(line)["name"] == "sessions/talk"


async def test_a_session_is_shown_with_what_was_said(kept, capsys):
    await antiphon(kept, "show", "talk")
    written = capsys.readouterr().out

    assert "instructions: be brief\nforked from: sessions/old/turns/x\nlabels: owner=ada" in written
    assert '> hello\nGood day\n* weather({"at": "Ulm"})\n> by the way\n' in written


async def test_a_session_is_shown_as_json(kept, capsys):
    await antiphon(kept, "show", "sessions/talk", "--json")
    whole = json.loads(capsys.readouterr().out)

    assert whole["session"]["etag"] == "9"
    assert [turn["name"][-1] for turn in whole["turns"]] == ["a", "b", "c"]


async def test_an_exported_session_is_imported_with_its_settings_and_history(
    kept, tmp_path, capsys
):
    file = tmp_path / "talk.jsonl"
    assert await antiphon(kept, "export", "talk", "--output", str(file)) == 0
    assert await antiphon(kept, "import", str(file), "--session-id", "copy") == 0

    copy = kept.sessions["sessions/copy"]
    assert capsys.readouterr().out == "copy\n"
    assert (copy.instructions, dict(copy.labels)) == ("be brief", {"owner": "ada"})
    assert (copy.etag, copy.fork_turn, copy.num_turns) == ("", "", 0)
    answered = assistant("Good day")
    answered.message.reasoning = "a greeting"
    assert kept.parts == [
        [
            user("hello"),
            answered,
            types_pb2.Item(tool_call=CALL),
            user("by the way"),
            user("caf\u00e9?\n"),
        ]
    ]
    assert list(tmp_path.iterdir()) == [file]


async def test_what_is_exported_is_exported_the_same_again(kept, capsys):
    await antiphon(kept, "export", "talk")
    first = capsys.readouterr().out
    read = archive.Archive.read(first.splitlines())

    assert read.session == kept.sessions["sessions/talk"]
    assert list(read.turns) == kept.turns["sessions/talk"]


async def test_a_long_history_is_imported_in_parts(kept, tmp_path):
    kept.turns["sessions/talk"] = [session_pb2.Turn(input=[user(str(i))]) for i in range(2500)]
    file = tmp_path / "talk.jsonl"

    await antiphon(kept, "export", "talk", "--output", str(file))
    await antiphon(kept, "import", str(file))

    assert [len(part) for part in kept.parts] == [1024, 1024, 452]
    assert kept.parts[-1][-1] == user("2499")


async def test_a_session_that_can_not_be_imported_whole_leaves_nothing(tmp_path, capsys):
    servicer = Keeping(refuses_appends=True)
    turns = [session_pb2.Turn(input=[user(str(i))]) for i in range(1100)]
    servicer.keep(session_pb2.Session(name="sessions/talk"), *turns)
    file = tmp_path / "talk.jsonl"

    await antiphon(servicer, "export", "talk", "--output", str(file))
    status = await antiphon(servicer, "import", str(file))

    assert status == 1
    assert "too much (QUOTA_EXCEEDED)" in capsys.readouterr().err
    assert list(servicer.sessions) == ["sessions/talk"]


BEGIN = '{"format": "antiphon.session", "version": 1, "session": {}}'
END = '{"end": {"num_turns": 0}}'


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([], "line 1: the end is missing"),
        (["hello"], "line 1: is no JSON"),
        (["[]"], "line 1: must be an object, is list"),
        (['{"a": 1}'], "line 1: `format` must be 'antiphon.session', is None"),
        ([BEGIN.replace("1", "2")], "line 1: `version` must be 1, is 2"),
        ([BEGIN, '{"turn": {"inptu": []}}', END], "line 2: `turn` is none"),
        ([BEGIN, '{"turn": 3}', END], "line 2: `turn` must be an object, is 3"),
        ([BEGIN, '{"turn": {}}', END], "line 3: `end.num_turns` is 0, but 1 turns came"),
        ([BEGIN, '{"turn": {}}'], "line 3: the end is missing"),
        ([BEGIN.replace("{}", '{"model": 7}'), END], "line 1: `session` is none"),
    ],
)
async def test_what_is_no_exported_session_is_refused_by_its_line(
    lines, complaint, tmp_path, capsys
):
    file = tmp_path / "bad.jsonl"
    file.write_text("".join(line + "\n" for line in lines))
    servicer = Keeping()

    status = await antiphon(servicer, "import", str(file))

    (line,) = capsys.readouterr().err.splitlines()
    assert status == 1
    assert line.startswith(f"antiphon: {file}: {complaint}")
    assert servicer.sessions == {}


async def test_a_session_that_is_not_there_is_one_line_and_leaves_no_file(tmp_path, capsys):
    file = tmp_path / "none.jsonl"
    status = await antiphon(Keeping(), "export", "nobody", "--output", str(file))

    assert status == 1
    assert capsys.readouterr().err == "antiphon: there is none (SESSION_NOT_FOUND)\n"
    assert list(tmp_path.iterdir()) == []


async def test_sessions_are_deleted(kept):
    assert await antiphon(kept, "delete", "talk", "sessions/other") == 0
    assert kept.sessions == {}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["list", "--label", "x"], "--label: must be KEY=VALUE, is 'x'"),
        (["list", "--cert", "a.pem"], "--cert and --key go together"),
        (["list", "--token-file", "/no/such"], " /no/such: No such file"),
        (["import", "/no/such"], " /no/such: No such file"),
    ],
)
def test_a_wrong_flag_is_one_line_and_status_2(words, named, capsys):
    status = main(["session", *words, "--target", "127.0.0.1:1"])

    (line,) = capsys.readouterr().err.splitlines()
    assert status == 2
    assert named in line
