"""A session that outlives its server: stop and start that while the answer comes.

usage: python resume.py [TARGET [SESSION]]
"""

import sys

from antiphon_client import ClientOptions, SyncClient, TurnRestarted

PATIENT = ClientOptions(reconnect_timeout_s=300)


def notice(failure):
    """Is told why the server was lost, and None once it is back."""
    print("\n[the server is back]" if failure is None else f"\n[{failure}]", file=sys.stderr)


def main(target="127.0.0.1:50051", name=""):
    """Asks for a long answer; goes on with `name`, or with a new session."""
    with SyncClient(target, PATIENT) as client:
        session = (
            client.resume_session(name, watcher=notice)
            if name
            else client.new_session(watcher=notice)
        )
        with session:
            print("This is", session.name)
            turn = session.send("Tell me about the sea, in ten sentences.")
            pieces = turn.text()
            while True:
                try:
                    for piece in pieces:
                        print(piece, end="", flush=True)
                    break
                except TurnRestarted as restarted:
                    # What was printed behind this part no longer holds.
                    print("\n[begun again]", restarted.kept_text, end="", sep="\n")
                    pieces = turn.text()
            print(f"\n[{turn.completed.usage.output_tokens} tokens]")


if __name__ == "__main__":
    main(*sys.argv[1:])
