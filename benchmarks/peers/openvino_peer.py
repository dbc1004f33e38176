"""OpenVINO GenAI: ``ContinuousBatchingPipeline.generate`` offline, on a 16-bit export of the same weights.

Its prefix cache cannot be emptied, and does not share between requests in flight: with it off every run is cold.
"""

import argparse
import time

from line_protocol import Outcome, Run, Stopwatch, answer_runs
from workloads import Request


def load() -> tuple[str, str, Run]:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="folder of the export")
    parser.add_argument("--prefix-caching", action="store_true", help="then only the first run of a workload is cold")
    options = parser.parse_args()

    import numpy
    import openvino
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = options.prefix_caching
    scheduler.max_num_batched_tokens = 512
    scheduler.max_num_seqs = 32
    scheduler.cache_size = 2  # GiB
    pipeline = openvino_genai.ContinuousBatchingPipeline(options.model, scheduler, "CPU")

    def tensor(request: Request) -> openvino.Tensor:
        return openvino.Tensor(numpy.array([request.prompt], dtype=numpy.int64))

    def greedy(request: Request) -> openvino_genai.GenerationConfig:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = request.output
        config.ignore_eos = True
        config.do_sample = False
        return config

    def offline(requests: list[Request]) -> Outcome:
        tensors, configs = [tensor(one) for one in requests], [greedy(one) for one in requests]
        began = time.perf_counter()
        results = pipeline.generate(tensors, configs)
        seconds = time.perf_counter() - began
        return Outcome(seconds, [len(result.m_generation_ids[0]) for result in results])

    def stepped(requests: list[Request]) -> Outcome:
        watch = Stopwatch(len(requests))
        handles = [pipeline.add_request(number, tensor(one), greedy(one)) for number, one in enumerate(requests)]
        while pipeline.has_non_finished_requests():
            pipeline.step()
            for number, handle in enumerate(handles):
                while handle.can_read():
                    watch.took(number, sum(len(output.generated_ids) for output in handle.read().values()))
        return watch.outcome()

    def run(requests: list[Request], latencies: bool) -> Outcome:
        return stepped(requests) if latencies else offline(requests)

    settings = "16-bit weights, prefix caching " + ("on" if options.prefix_caching else "off")
    return f"openvino-genai {openvino_genai.__version__.split('-')[0]}", settings, run


if __name__ == "__main__":
    answer_runs(load)
