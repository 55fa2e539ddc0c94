"""The requests that an engine works on, and the news of their steps on the way to the readers."""

import itertools
from collections.abc import Callable

from antiphon_engine.api.announcing import Announcements
from antiphon_engine.api.errors import AntiphonError
from antiphon_engine.api.handle import max_unread_tokens
from antiphon_engine.api.messages import GenerationRequest, StepNews, Submit, ToEngine
from antiphon_engine.api.streams import MostUnread, NewsStream, deliver_step


class OpenStreams:
    """The streams of an engine's requests. Used on one event loop."""

    def __init__(self) -> None:
        self._streams: dict[int, NewsStream] = {}
        self._request_ids = itertools.count(1)
        self._announcements = Announcements()

    def submit(
        self,
        request: GenerationRequest,
        *,
        max_unread_bytes: int,
        send: Callable[[ToEngine], None],
    ) -> NewsStream:
        """Hands a request over, and returns its stream."""
        request_id = next(self._request_ids)
        stream = NewsStream(
            request_id,
            num_outputs=request.num_outputs,
            most_unread=MostUnread(
                num_tokens=max_unread_tokens(request, max_unread_bytes),
                num_prompt_bytes=max_unread_bytes,
            ),
            send=send,
            forget=self._forget,
        )
        self._streams[request_id] = stream
        send(Submit(request_id=request_id, request=request))
        return stream

    def take_step(self, step: StepNews) -> None:
        """Adds a step's news to its streams; `announce` brings them to the readers."""
        told = deliver_step(step, self._streams)
        self._announcements.add(told)
        if not step.has_tokens_only:
            for stream in told:
                if stream.is_urgent:
                    self._announcements.add_urgent(stream)
                if stream.is_over:
                    self._forget(stream.request_id)

    def announce(self) -> None:
        """Brings what a read of the socket held to the readers: it may be several steps' news."""
        self._announcements.bring()

    def fail(self, request_id: int, error: AntiphonError) -> None:
        """Ends a request's stream with an error; one that is not there was let go of."""
        if stream := self._streams.pop(request_id, None):
            stream.fail(error)

    def fail_all(self, error: AntiphonError) -> None:
        """Ends all streams with an error."""
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(error)

    def _forget(self, request_id: int) -> None:
        self._streams.pop(request_id, None)
