"""The five workloads: prompts of random ids, drawn in this order from one generator, and how many tokens each answers.

W1  batch 1                        1 x  128 -> 128
W2  16 at once                    16 x  128 -> 128
W3  continuous batching           32 x 16..512 -> 16..256
W4  16 at once, one prefix        16 x (1,024 shared + 32) -> 32
W5  prefill                        1 x 1,536 -> 1
"""

import random
from dataclasses import dataclass, replace

# Ids below are special tokens; the demo model's vocabulary has 49,152.
FIRST_ID, END_ID = 100, 49_000


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and the number of tokens to generate, end-of-sequence tokens ignored."""

    prompt: list[int]
    output: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that arrive together.

    Attributes:
        counts_prompts: its rate is prompt tokens per second, not output tokens.
    """

    name: str
    title: str
    requests: list[Request]
    counts_prompts: bool = False

    @property
    def tokens(self) -> int:
        """What the rate counts."""
        return sum(len(one.prompt) if self.counts_prompts else one.output for one in self.requests)

    def cut(self, to: int) -> "Workload":
        """The same with prompts and outputs of at most so many tokens: to see that an engine runs, not how fast."""
        requests = [Request(one.prompt[-to:], min(one.output, to)) for one in self.requests]
        return replace(self, title=f"{self.title}, cut to {to}", requests=requests)


def all_workloads(seed: int = 0) -> dict[str, Workload]:
    """All five by name; the same seed gives the same ids everywhere."""
    dice = random.Random(seed)

    def ids(count: int) -> list[int]:
        return [dice.randrange(FIRST_ID, END_ID) for _ in range(count)]

    single = [Request(ids(128), 128)]
    batch = [Request(ids(128), 128) for _ in range(16)]
    lengths = [(dice.randint(16, 512), dice.randint(16, 256)) for _ in range(32)]
    mixed = [Request(ids(prompt), output) for prompt, output in lengths]
    prefix = ids(1_024)
    shared = [Request(prefix + ids(32), 32) for _ in range(16)]
    prefill = [Request(ids(1_536), 1)]
    found = [
        Workload("W1", "batch 1: 128 -> 128", single),
        Workload("W2", "16 at once: 128 -> 128", batch),
        Workload("W3", "32 mixed: 16..512 -> 16..256", mixed),
        Workload("W4", "16 share 1,024, cold: 1,056 -> 32", shared),
        Workload("W5", "prefill: 1,536 -> 1", prefill, counts_prompts=True),
    ]
    return {one.name: one for one in found}
