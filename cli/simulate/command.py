"""``octavo simulate``: what paging buys, with the real KV manager."""

import json
from pathlib import Path
from typing import Annotated

import typer

from cli.failures import CliError
from cli.options import TlsCaOption, TlsCertificateOption, TlsKeyOption, TlsOption
from cli.simulate.beams import TURNOVER

PAPER_REQUESTS = 3_000


def simulate(
    paper: Annotated[
        bool, typer.Option("--paper", help="print our figures beside those of the original paged-attention paper")
    ] = False,
    trace: Annotated[
        str,
        typer.Option(help="serve an Azure trace, or find what a Mooncake trace shares: a file, or azure or mooncake"),
    ] = "",
    lengths: Annotated[str, typer.Option(help="lengths of drawn requests: sharegpt or alpaca")] = "sharegpt",
    requests: Annotated[
        int, typer.Option(min=0, show_default=False, help="requests to draw (2000 unless said) or to take of the trace")
    ] = 0,
    rate: Annotated[
        float, typer.Option(min=0, help="arrivals a second, a Poisson process; 0: all wait from the start")
    ] = 0.0,
    speed: Annotated[str, typer.Option(help="paces of the trace between commas, such as 1,4")] = "1",
    samples: Annotated[int, typer.Option(min=1, max=64, help="parallel samples of each request")] = 1,
    beams: Annotated[int, typer.Option(min=1, max=64, help="beams of each request")] = 1,
    turnover: Annotated[
        float, typer.Option(min=0, max=1, help="how often a beam's place goes to a child of another, per token")
    ] = TURNOVER,
    model: Annotated[
        str,
        typer.Option(
            show_default=False, help="opt-13b or llama-3.1-8b; unless said llama-3.1-8b for traces, else opt-13b"
        ),
    ] = "",
    device: Annotated[
        str,
        typer.Option(
            show_default=False,
            help="a100-40gb, a100-80gb or h100-80gb; unless said a100-80gb for traces, else a100-40gb",
        ),
    ] = "",
    memory: Annotated[
        str,
        typer.Option(show_default=False, help="GiB for KV, such as 8,50; unless said 50 for traces, else 12"),
    ] = "",
    block_sizes: Annotated[str, typer.Option(help="tokens in a block; several compare them, such as 1,8,16")] = "16",
    capacities: Annotated[
        str, typer.Option(show_default=False, help="blocks of the pools of a hit curve, a range unless said")
    ] = "",
    watermark: Annotated[float, typer.Option(min=0, max=0.5, help="share of blocks that admissions leave free")] = 0.01,
    max_tokens: Annotated[
        int,
        typer.Option(min=0, show_default=False, help="longest sequence; unless said 16,384 for traces, else 2,048"),
    ] = 0,
    max_batch: Annotated[
        int, typer.Option(min=0, show_default=False, help="most requests that run together; no limit unless said")
    ] = 0,
    budget: Annotated[int, typer.Option(min=1, help="most tokens computed in a step")] = 2_048,
    seed: Annotated[int, typer.Option(help="of everything drawn")] = 1,
    plot: Annotated[Path | None, typer.Option(help="draw the result to this .svg or .png")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of tables")] = False,
    address: Annotated[
        str, typer.Option(show_default=False, help="drive the KV manager at host:port; unless said one in this process")
    ] = "",
    tls: TlsOption = False,
    tls_ca: TlsCaOption = None,
    tls_certificate: TlsCertificateOption = None,
    tls_key: TlsKeyOption = None,
) -> None:
    """Serve drawn or traced requests from the real KV manager, and from contiguous allocators of the same memory.

    Steps are real, what a model would compute is not: time passes by a cost model, stated in docs/simulate.md.

    Exit status 1 when the manager's counters and the simulator's differ, or with --paper a figure misses its bounds.
    """
    from cli.options import tls_files
    from cli.printing import show
    from cli.simulate import reports
    from cli.simulate.choices import Choices, named, numbers
    from cli.simulate.costs import DEVICES, SHAPES
    from cli.simulate.lengths import BY_NAME
    from cli.simulate.manager_port import manager_at
    from cli.simulate.plots import check_plot
    from cli.simulate.progress import bars

    if samples > 1 and beams > 1:
        raise CliError("--samples or --beams, not both")
    if paper and plot is not None:
        raise CliError("--paper prints a table; --plot draws the other simulations")
    if plot is not None:
        check_plot(plot)
    chosen = Choices(
        trace=trace,
        lengths=named("--lengths", lengths, BY_NAME),
        requests=requests,
        rate=rate,
        speeds=numbers("--speed", speed, float),
        samples=samples,
        beams=beams,
        turnover=turnover,
        shape=named("--model", model or ("llama-3.1-8b" if trace else "opt-13b"), SHAPES),
        device=named("--device", device or ("a100-80gb" if trace else "a100-40gb"), DEVICES),
        memories=numbers("--memory", memory, float) if memory else [0.0],
        block_sizes=numbers("--block-sizes", block_sizes, int),
        capacities=numbers("--capacities", capacities, int) if capacities else [],
        watermark=watermark,
        max_tokens=max_tokens,
        max_batch=max_batch,
        budget=budget,
        seed=seed,
    )
    files = tls_files(wanted=tls, ca=tls_ca, certificate=tls_certificate, key=tls_key)
    with manager_at(address, files) as port, bars() as shown:
        if paper:
            report = reports.paper(port, requests or PAPER_REQUESTS, seed, shown)
        elif trace:
            report = reports.of_trace(port, chosen, shown)
        else:
            report = reports.of_lengths(port, chosen, shown)
    if as_json:
        print(json.dumps(report.rows))
    else:
        show(report.view)
    if plot is not None and report.draw is not None:
        report.draw(plot)
    if not report.holds:
        raise SystemExit(1)
