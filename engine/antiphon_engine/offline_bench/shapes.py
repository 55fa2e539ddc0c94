"""What is measured: how many requests of which lengths."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeShape:
    """All requests of a batch generate at once."""

    batch_sizes: tuple[int, ...] = (1, 8, 32, 128, 256)
    context_tokens: int = 1024
    output_tokens: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillShape:
    """Prompts of which one token is wanted; at once, and then one alone."""

    num_prompts: int = 16
    prompt_tokens: int = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class MixShape:
    """Requests of any length, all sent at once; lengths are drawn between the two."""

    num_requests: int = 512
    prompt_tokens: tuple[int, int] = (128, 2048)
    output_tokens: tuple[int, int] = (64, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsShape:
    """Conversations that start one after the other; each turn follows the one before at once."""

    num_sessions: int = 64
    num_turns: int = 6
    system_tokens: int = 2048
    user_tokens: int = 100
    output_tokens: int = 100
    stagger_s: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """The shapes of all workloads."""

    decode: DecodeShape = DecodeShape()
    prefill: PrefillShape = PrefillShape()
    mix: MixShape = MixShape()
    sessions: SessionsShape = SessionsShape()

    def divided(self, divisor: int) -> "Shapes":
        """Returns shapes with lengths and counts so many times smaller, for a quick look."""

        def less(number: int) -> int:
            return max(1, number // divisor)

        decode, prefill, mix, sessions = self.decode, self.prefill, self.mix, self.sessions
        return Shapes(
            decode=replace(
                decode,
                context_tokens=less(decode.context_tokens),
                output_tokens=less(decode.output_tokens),
            ),
            prefill=PrefillShape(
                num_prompts=less(prefill.num_prompts), prompt_tokens=less(prefill.prompt_tokens)
            ),
            mix=MixShape(
                num_requests=less(mix.num_requests),
                prompt_tokens=(less(mix.prompt_tokens[0]), less(mix.prompt_tokens[1])),
                output_tokens=(less(mix.output_tokens[0]), less(mix.output_tokens[1])),
            ),
            sessions=SessionsShape(
                num_sessions=less(sessions.num_sessions),
                num_turns=max(2, less(sessions.num_turns)),
                system_tokens=less(sessions.system_tokens),
                user_tokens=less(sessions.user_tokens),
                output_tokens=less(sessions.output_tokens),
                stagger_s=sessions.stagger_s / divisor,
            ),
        )
