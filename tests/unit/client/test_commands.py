import asyncio
import json
import os
import subprocess
import sys
from asyncio.subprocess import PIPE

import pytest
from antiphon.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    types_pb2,
)
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2
from grpc import StatusCode

from antiphon_cli.main import COMMANDS, main
from antiphon_client import system, user
from support.scripted_services import refuse, serving

CONTENT = types_pb2.OUTPUT_CHANNEL_CONTENT
CUT = types_pb2.FINISH_REASON_MAX_OUTPUT_TOKENS


class Answering(inference_pb2_grpc.InferenceServiceServicer):
    def __init__(self, finish_reason=types_pb2.FINISH_REASON_STOP, words=("Good ", "day")):
        self.finish_reason = finish_reason
        self.words = words
        self.requests = []

    async def StreamGenerate(self, request, context):
        self.requests.append(request)
        for word in self.words:
            delta = types_pb2.Delta(channel=CONTENT, text=word)
            yield inference_pb2.StreamGenerateResponse(delta=delta)
        ended = inference_pb2.OutputFinished(finish_reason=self.finish_reason)
        yield inference_pb2.StreamGenerateResponse(output_finished=ended)
        yield inference_pb2.StreamGenerateResponse(completed=inference_pb2.GenerationCompleted())

    async def Generate(self, request, context):
        self.requests.append(request)
        outputs = [
            types_pb2.Output(index=i, text=f"name {i}", finish_reason=self.finish_reason)
            for i in range(request.num_outputs)
        ]
        return inference_pb2.GenerateResponse(
            outputs=outputs, usage=types_pb2.Usage(output_tokens=4)
        )


class Refusing(inference_pb2_grpc.InferenceServiceServicer):
    async def StreamGenerate(self, request, context):
        info = error_details_pb2.ErrorInfo(reason="UNSUPPORTED_FEATURE")
        await refuse(context, StatusCode.UNIMPLEMENTED, "no constraints here", info)
        yield


class Overloaded(inference_pb2_grpc.InferenceServiceServicer):
    async def StreamGenerate(self, request, context):
        info = error_details_pb2.ErrorInfo(reason="OVERLOADED")
        retry = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=2))
        message = "256 requests wait already; try again in 2 s"
        await refuse(context, StatusCode.RESOURCE_EXHAUSTED, message, info, retry)
        yield


async def generate(servicer, *arguments):
    async with serving(inference=servicer) as target:
        return await asyncio.to_thread(main, ["generate", "--target", target, *arguments])


def refused(argv, capsys):
    """Runs a command that ends in one line, and returns its status and that line."""
    status = main(argv)
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert len(lines) == 1, "one line, and no traceback"
    return status, lines[0]


async def test_generate_writes_the_answer_to_standard_output(capsys):
    servicer = Answering()

    status = await generate(servicer, "--instructions", "be brief", "hello")

    assert (status, capsys.readouterr().out) == (0, "Good day\n")
    assert servicer.requests[0].prompt.conversation.items == [system("be brief"), user("hello")]


async def test_generate_sends_only_the_flags_that_are_given():
    servicer = Answering()
    flags = "--temperature 0 --top-k 5 --seed 7 --max-tokens 9 --stop a --stop b --model models/m"

    await generate(servicer, *flags.split(), "hello")

    assert servicer.requests[0].model == "models/m"
    assert servicer.requests[0].config == types_pb2.GenerationConfig(
        sampling=types_pb2.SamplingParams(temperature=0, top_k=5, seed=7),
        stop=types_pb2.StopConditions(max_output_tokens=9, stop_strings=["a", "b"]),
    )


class Foretelling(Answering):
    """Tells of its prompt before it answers."""

    entries = (
        types_pb2.PositionLogprobs(),
        types_pb2.PositionLogprobs(
            chosen=types_pb2.TokenLogprob(token=b" be\n", logprob=-1.25),
            top=[
                types_pb2.TokenLogprob(token="ä".encode(), logprob=-0.5),
                types_pb2.TokenLogprob(token=b"\xff", logprob=-1),
            ],
        ),
        types_pb2.PositionLogprobs(chosen=types_pb2.TokenLogprob(token=b"\x1b", logprob=-2)),
    )

    async def StreamGenerate(self, request, context):
        parts = [
            types_pb2.PromptPart(first_position=first, logprobs=self.entries[first:end])
            for first, end in ((0, 2), (2, 3))
        ]
        for part in parts:
            yield inference_pb2.StreamGenerateResponse(prompt_part=part)
        async for event in super().StreamGenerate(request, context):
            yield event

    async def Generate(self, request, context):
        answer = await super().Generate(request, context)
        answer.prompt_logprobs.extend(self.entries[1:])
        return answer


async def test_generate_says_how_likely_the_prompt_is(capsys):
    servicer = Foretelling()
    lines = [
        "     0  (nothing is before it)",
        "     1   -1.2500  ' be\\n'  | 'ä' -0.5000  b'\\xff' -1.0000",
        "     2   -2.0000  '\\x1b'",
    ]

    await generate(servicer, "--prompt-logprobs", "2", "to be")
    streamed = capsys.readouterr()
    await generate(servicer, "--prompt-logprobs", "2", "-n", "2", "to be")
    whole = capsys.readouterr()

    assert streamed.out == "Good day\n"
    assert streamed.err.splitlines() == lines
    assert whole.err.splitlines() == lines[1:]
    asked = types_pb2.OutputOptions(prompt_logprobs=True, top_logprobs=2)
    assert [request.config.output for request in servicer.requests] == [asked, asked]


async def test_generate_reads_standard_input():
    servicer = Answering()

    async with serving(inference=servicer) as target:
        words = [sys.executable, "-m", "antiphon_cli.main", "generate", "--target", target]
        process = await asyncio.create_subprocess_exec(*words, "--raw", "-", stdin=PIPE)
        await process.communicate(b"from a pipe")

    assert servicer.requests[0].prompt == types_pb2.Prompt(text="from a pipe")


class Looking(admin_pb2_grpc.AdminServiceServicer):
    async def WatchEngineStats(self, request, context):
        while True:
            yield admin_pb2.EngineStats(model="models/tiny")
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    "words", [["generate", "x"], ["top", "--interval", "0.1"], ["top", "--json"], ["--help"]]
)
async def test_a_reader_that_leaves_early_ends_a_command_without_a_word(words):
    async with serving(inference=Answering(), admin=Looking()) as target:
        connection = [] if words == ["--help"] else ["--target", target]
        command = [sys.executable, "-m", "antiphon_cli.main", *words, *connection]
        ours, theirs = os.pipe()
        process = await asyncio.create_subprocess_exec(*command, stdout=theirs, stderr=PIPE)
        os.close(theirs)
        os.close(ours)
        _, complaints = await process.communicate()

    assert (process.returncode, complaints) == (130, b"")


async def run_process(servicer, *words, give=b"", environ=()):
    async with serving(inference=servicer) as target:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "antiphon_cli.main", "generate", "--target", target, *words),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env={**os.environ, **dict(environ)},
        )
        written, complaints = await process.communicate(give)
    return process.returncode, written, complaints.decode().splitlines()


@pytest.mark.parametrize("words", [["-"], [b"\xff"], ["x", "--stop", b"\xff"]])
async def test_bytes_that_are_no_text_are_refused_in_one_line(words):
    servicer = Answering()

    status, written, complaints = await run_process(servicer, *words, give=b"caf\xe9")

    assert (status, written, servicer.requests) == (2, b"", [])
    (line,) = complaints
    assert "is no text" in line


async def test_an_answer_is_written_as_far_as_the_locale_has_its_characters():
    plain = [("LC_ALL", "C"), ("PYTHONUTF8", "0"), ("PYTHONCOERCECLOCALE", "0")]

    status, written, _ = await run_process(Answering(words=("na\u00efve",)), "x", environ=plain)

    assert (status, written) == (0, b"na?ve\n")


async def test_an_answer_that_can_not_be_written_is_one_line():
    async with serving(inference=Answering()) as target:
        words = [sys.executable, "-m", "antiphon_cli.main", "generate", "--target", target, "x"]
        with open("/dev/full", "wb") as full:  # noqa: ASYNC230
            process = await asyncio.create_subprocess_exec(*words, stdout=full, stderr=PIPE)
        _, complaints = await process.communicate()

    assert process.returncode == 1
    assert complaints.decode().splitlines() == ["antiphon: can't go on: No space left on device"]


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("MAX_OUTPUT_TOKENS", "(cut at --max-tokens)\n"),
        ("CONTEXT_FULL", "(cut where the model's context is full)\n"),
        ("TIME_LIMIT", "(cut at the time limit)\n"),
        ("STOP_SEQUENCE", ""),
    ],
)
async def test_generate_tells_where_an_answer_was_cut(capsys, reason, told):
    status = await generate(Answering(getattr(types_pb2, f"FINISH_REASON_{reason}")), "hello")

    assert (status, capsys.readouterr().err) == (0, told)


async def test_generate_tells_which_of_several_answers_were_cut(capsys):
    status = await generate(Answering(CUT), "-n", "2", "hello")

    told = "(answer 1 was cut at --max-tokens)\n(answer 2 was cut at --max-tokens)\n"
    assert (status, capsys.readouterr().err) == (0, told)


@pytest.mark.parametrize("how", [[], ["--json"], ["-n", "2"]], ids=["streamed", "json", "several"])
async def test_an_answer_that_had_to_keep_to_a_form_and_was_cut_is_a_failure(capsys, how):
    asked = ["--json-object", "hello", *how]

    assert await generate(Answering(CUT), *asked) == 4
    assert "antiphon: an answer was cut before it was whole" in capsys.readouterr().err
    assert await generate(Answering(), *asked) == 0
    assert capsys.readouterr().err == ""


async def test_generate_writes_several_answers(capsys):
    await generate(Answering(), "-n", "2", "hello")

    assert capsys.readouterr().out == "--- 1 of 2 ---\nname 0\n--- 2 of 2 ---\nname 1\n"


async def test_generate_writes_one_json_object(capsys):
    await generate(Answering(), "--json", "hello")

    answer = json.loads(capsys.readouterr().out)
    output = {"text": "name 0", "finish_reason": "FINISH_REASON_STOP"}
    assert answer == {"outputs": [output], "usage": {"output_tokens": 4}}


async def test_a_refusal_is_one_line_and_status_1(capsys, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text("{}")

    status = await generate(Refusing(), "--json-schema", str(schema), "hello")

    assert status == 1
    assert capsys.readouterr().err == "antiphon: no constraints here (UNSUPPORTED_FEATURE)\n"


async def test_a_delay_that_the_refusal_tells_is_told_once(capsys):
    await generate(Overloaded(), "hello")

    line = capsys.readouterr().err
    assert line == "antiphon: 256 requests wait already; try again in 2 s (OVERLOADED)\n"


@pytest.mark.parametrize("command", [["generate", "hello"], ["chat"]])
async def test_a_port_that_does_not_know_the_call_is_named(command, capsys):
    async with serving() as target:
        status = await asyncio.to_thread(main, [*command, "--target", target])

    (line,) = capsys.readouterr().err.splitlines()
    assert status == 1
    assert f"what answers at {target} doesn't know this call" in line


@pytest.mark.parametrize("command", [["generate", "hello"], ["chat"]])
def test_a_server_that_is_not_there_is_one_line_and_status_3(command, capsys):
    status, line = refused([*command, "--target", "127.0.0.1:1"], capsys)

    assert status == 3
    assert "127.0.0.1:1" in line
    assert "antiphon serve" in line


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["srve"], "antiphon serve"),
        (
            ["generate", "--seed", "-1", "x"],
            "--seed: must be from 0 to 18446744073709551615, is -1",
        ),
        (["generate", "--top-k", "4294967296", "x"], "--top-k"),
        (["generate", "--max-tokens", "-1", "x"], "--max-tokens"),
        (["generate", "--min-tokens", "-1", "x"], "--min-tokens"),
        (["generate", "-n", "-1", "x"], "--num-outputs"),
        (["generate", "--prompt-logprobs", "-1", "x"], "--prompt-logprobs"),
        (["chat", "--seed", "-1"], "--seed"),
        (["generate", "--raw", "--instructions", "y", "x"], "--instructions"),
        (["chat", "--session", "s", "--instructions", "y"], "--instructions"),
        (["serve", "--quantization", "int2"], "engine.quantization"),
        (["serve", "--set", "engine.max_row=3"], "engine.max_rows"),
        (["serve", "--config", "/no/such/file", "--check-config"], "/no/such/file"),
    ],
)
def test_wrong_use_is_one_line_that_names_it_and_status_2(argv, named, capsys):
    status, line = refused(argv, capsys)

    assert status == 2
    assert named in line


def test_check_config_prints_the_settings_that_the_flags_make(capsys):
    status = main(
        [
            *("serve", "--check-config", "--model", "m", "--insecure"),
            *("--quantization", "int8", "--set", "engine.max_rows=3"),
        ]
    )

    printed = capsys.readouterr().out.splitlines()
    assert status == 0
    assert {'model.source = "m"', "server.insecure = true", "engine.max_rows = 3"} <= {*printed}
    assert 'engine.quantization = "int8"' in printed


def test_help_lists_the_commands_and_each_explains_itself_by_examples(capsys):
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {command} " in listed for command in COMMANDS)
    for command in COMMANDS:
        with pytest.raises(SystemExit, match="0"):
            main([command, "--help"])
        assert f"examples:\n  antiphon {command}" in capsys.readouterr().out


def test_version_names_the_release(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "antiphon 0.1.0\n"


def test_no_command_is_wrong_use(capsys):
    assert main([]) == 2
    assert "usage" in capsys.readouterr().out


def test_talking_loads_neither_the_server_nor_torch():
    code = (
        "import sys; from antiphon_cli.main import main; main(['generate', '--target', "
        "'127.0.0.1:1', 'x']); print([m for m in ('torch', 'antiphon_server', "
        "'antiphon_engine', 'antiphon_cli.serve') if m in sys.modules])"
    )

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout == "[]\n"


def test_serving_leaves_it_to_the_server_to_load_grpc():
    code = (
        "import atexit, sys; from antiphon_cli.main import main; "
        "atexit.register(lambda: print('grpc' in sys.modules)); main(['serve', '--help'])"
    )

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout.endswith("\nFalse\n")
