"""``octavo estimate``: how much memory keys and values take, and how many sequences fit."""

import json
from typing import Annotated, Literal

import typer

from cli.failures import CliError
from cli.options import INT32_MAX, UINT32_MAX

DEFAULT_CONTEXT = 8_192
# What the manager takes; kernels take 1 to 256.
MAX_BLOCK_SIZE = 65_536
TABLE_WIDTH = 120


def estimate(
    model: Annotated[
        str, typer.Argument(help="model folder, config.json, GGUF file, built-in shape (--list) or hub id")
    ] = "",
    context: Annotated[
        int | None,
        typer.Option(min=1, max=UINT32_MAX, help=f"tokens per sequence [default: {DEFAULT_CONTEXT}, or the model's]"),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=UINT32_MAX, help="sequences at once")] = 1,
    memory: Annotated[str, typer.Option(help="for KV blocks, such as 50GiB or 80GB: what fits?")] = "",
    dtype: Annotated[Literal["float32", "bfloat16", "float16", "fp8"], typer.Option(help="type of KV")] = "bfloat16",
    block_size: Annotated[int, typer.Option(min=1, max=MAX_BLOCK_SIZE, help="tokens per block")] = 16,
    layers: Annotated[int | None, typer.Option(min=1, max=65_536, help="layers, where no model says")] = None,
    heads: Annotated[int | None, typer.Option(min=1, max=INT32_MAX, help="query heads")] = None,
    kv_heads: Annotated[int | None, typer.Option(min=1, max=INT32_MAX, help="KV heads")] = None,
    head_dim: Annotated[int | None, typer.Option(min=1, max=INT32_MAX, help="elements of a head")] = None,
    kv_lora_rank: Annotated[int | None, typer.Option(min=1, max=INT32_MAX, help="MLA: elements of a latent")] = None,
    qk_rope_head_dim: Annotated[
        int | None, typer.Option(min=1, max=INT32_MAX, help="MLA: elements of the rotated key")
    ] = None,
    list_shapes: Annotated[bool, typer.Option("--list", help="list the built-in shapes")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of tables")] = False,
) -> None:
    """Say how much memory keys and values take.

    Sum by sum: per token, block, sequence and pool, how many blocks and sequences fit, and what other block sizes,
    types and kinds of attention would change. Agrees to the byte with the pool that the model worker allocates.
    """
    from cli.estimate.built_in import ALIASES, SHAPES
    from cli.estimate.config_file import Given, shape_of_numbers
    from cli.estimate.report import report
    from cli.estimate.sizes import human, read_memory
    from cli.estimate.source import find_shape
    from cli.estimate.sums import Sizing
    from cli.estimate.views import view
    from cli.printing import show

    if list_shapes:
        for name, shape in SHAPES.items():
            print(f"{name:<18} {shape.kind}  {human(shape.token_bytes(2)):>10} per token in bfloat16")
        for alias, name in ALIASES.items():
            print(f"{alias:<18} is {name}")
        return
    given = Given(layers, heads, kv_heads, head_dim, kv_lora_rank, qk_rope_head_dim)
    if not model and not given.any:
        raise CliError("name a MODEL, or give --layers, --kv-heads and --head-dim; --list lists the built-in shapes")
    shape = find_shape(model, given) if model else shape_of_numbers(given)
    sizing = Sizing(
        shape,
        dtype,
        block_size,
        context or min(DEFAULT_CONTEXT, shape.max_context or DEFAULT_CONTEXT),
        concurrency,
        read_memory(memory) if memory else None,
    )
    if as_json:
        print(json.dumps(report(sizing)))
        return
    show(view(sizing), width=TABLE_WIDTH)
