"""transformers: ``generate`` on a left-padded batch, or ``generate_batch``, its continuous batching."""

import argparse
import os
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from line_protocol import Outcome, Run, answer_runs
from workloads import Request

# Room for all of W4 at once; by itself continuous batching takes most of the machine's memory.
KV_TOKENS, PAGE = 32_768, 256


def load() -> tuple[str, str, Run]:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--continuous", action="store_true", help="generate_batch instead of generate")
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()

    import torch
    import transformers
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(
        options.model, dtype=getattr(torch, options.dtype), attn_implementation="sdpa"
    )
    model.eval()
    # Nothing ends a sequence but its length.
    model.generation_config = GenerationConfig(pad_token_id=model.config.eos_token_id)

    def padded(requests: list[Request]) -> list[int]:
        """All run as long as the longest prompt and the longest output; only what was asked for counts."""
        longest = max(len(one.prompt) for one in requests)
        pads = [longest - len(one.prompt) for one in requests]
        ids = torch.tensor([[0] * pad + one.prompt for pad, one in zip(pads, requests, strict=True)])
        mask = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in pads])
        new = max(one.output for one in requests)
        found = model.generate(ids, attention_mask=mask, max_new_tokens=new, min_new_tokens=new, do_sample=False)
        produced = found.shape[1] - longest
        return [min(produced, one.output) for one in requests]

    def continuous(requests: list[Request]) -> list[int]:
        config = GenerationConfig(
            do_sample=False, max_new_tokens=max(one.output for one in requests), eos_token_id=-1, pad_token_id=0
        )
        cache = ContinuousBatchingConfig(num_blocks=KV_TOKENS // PAGE, page_size=PAGE, max_batch_tokens=512)
        with model.continuous_batching_context_manager(config, continuous_batching_config=cache) as manager:
            numbers = {
                manager.add_request(one.prompt, max_new_tokens=one.output): number
                for number, one in enumerate(requests)
            }
            tokens = [0] * len(requests)
            left = len(requests)
            while left:
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    tokens[numbers[result.request_id]] = len(result.generated_tokens)
                    left -= 1
        return tokens

    way = continuous if options.continuous else padded

    def run(requests: list[Request], latencies: bool) -> Outcome:
        began = time.perf_counter()
        with torch.inference_mode():
            tokens = way(requests)
        return Outcome(time.perf_counter() - began, tokens)

    name = "generate_batch" if options.continuous else "generate"
    return f"transformers {transformers.__version__} {name}", f"{options.dtype}, sdpa", run


if __name__ == "__main__":
    answer_runs(load)
