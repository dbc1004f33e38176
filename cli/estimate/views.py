"""What ``octavo estimate`` prints: the arithmetic line by line, then what other choices would change."""

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cli.amounts import counted
from cli.estimate import variants
from cli.estimate.shape import ModelShape
from cli.estimate.sizes import human
from cli.estimate.sums import Sizing, steps
from cli.foreign import printable


def view(sizing: Sizing) -> RenderableType:
    """The whole estimate."""
    parts: list[RenderableType] = [Text(_heading(sizing.shape), style="bold"), _steps(sizing)]
    for table in (_block_sizes(sizing), _dtypes(sizing), _attention(sizing)):
        if table.row_count:
            parts += ["", table]
    if notes := _notes(sizing):
        parts += ["", *(Text(f"- {note}") for note in notes)]
    return Group(*parts)


def _heading(shape: ModelShape) -> str:
    if shape.latent is not None:
        heads = f"latents of {shape.latent.rank} + {shape.latent.rope_dim}"
    else:
        heads = f"{counted(shape.num_heads, 'head')} on {counted(shape.num_kv_heads, 'KV head')} of {shape.head_dim}"
    made = "" if shape.max_context is None else f", made for {shape.max_context:,} tokens"
    return printable(f"{shape.name}: {shape.kind}, {counted(shape.num_layers, 'layer')}, {heads}{made}")


def _steps(sizing: Sizing) -> Table:
    table = _table("", "", ">", "", ">")
    for step in steps(sizing):
        table.add_row(step.what, step.sum, f"= {step.value:,}", step.unit, step.read)
    return table


def _block_sizes(sizing: Sizing) -> Table:
    table = _table(
        "tokens per block", ">a block", ">blocks of a sequence", ">empty on average", *_fit_columns(sizing),
        title="other block sizes",
    )  # fmt: skip
    for each in variants.by_block_size(sizing):
        waste = variants.mean_waste(each)
        table.add_row(
            _marked(f"{each.block_size}", each.block_size == sizing.block_size),
            human(each.block_bytes),
            f"{each.sequence_blocks:,}",
            f"{waste:g} tokens ({waste / each.context:.2%})",
            *_fits(each),
        )
    return table


def _dtypes(sizing: Sizing) -> Table:
    table = _table("type", ">a token", ">a block", ">the pool", *_fit_columns(sizing), title="other types of KV")
    for each in variants.by_dtype(sizing):
        table.add_row(
            _marked(each.dtype, each.dtype == sizing.dtype),
            human(each.token_bytes),
            human(each.block_bytes),
            human(each.pool_bytes),
            *_fits(each),
        )
    return table


def _attention(sizing: Sizing) -> Table:
    table = _table("kind", "elements per layer", ">a token", ">of MHA", title="other kinds of attention")
    rows = variants.by_attention(sizing)
    for row in rows:
        table.add_row(
            _marked(row.kind, row.own),
            f"{row.sum} = {row.layer_elements:,}",
            human(row.token_bytes),
            f"{row.layer_elements / rows[0].layer_elements:.2%}",
        )
    return table


def _notes(sizing: Sizing) -> list[str]:
    """What the figures do not say."""
    shape, fits, notes = sizing.shape, sizing.fits, []
    if fits is not None and not fits.num_blocks:
        notes.append("no room: the worker wants one block beside the null block, and would not start")
    if shape.max_context is not None and sizing.context > shape.max_context:
        notes.append(f"{sizing.context:,} tokens are more than the {shape.max_context:,} that the model was made for")
    if (seen := variants.windows(sizing)) is not None:
        notes.append(
            f"{seen.layers} of {shape.num_layers} layers see the last {seen.window:,} tokens only. The pool has one "
            f"block table for all layers and keeps {human(seen.allocated)} per sequence; with a pool per kind of layer "
            f"it would be {human(seen.needed)}, {seen.saved:.1%} less"
        )
        if seen.everywhere:
            notes[-1] += (
                ". No layer sees further, so one table would do: the manager can give blocks behind the window "
            )
            notes[-1] += "back (design 3.10), the worker does not ask for it yet"
    if shape.latent is None:
        notes.append(
            f"fp8 takes {human(variants.scale_bytes(sizing))} more for scales; kernels read it, the worker's --dtype "
            "has no such choice yet"
        )
    if shape.unserved is not None:
        notes.append(shape.unserved)
    notes.append("weights and activations come on top; sequences that share a prefix share its blocks and take less")
    return notes


def _fit_columns(sizing: Sizing) -> list[str]:
    return [] if sizing.memory is None else [">usable blocks", ">sequences"]


def _fits(sizing: Sizing) -> list[str]:
    fits = sizing.fits
    return [] if fits is None else [f"{fits.num_blocks:,}", f"{fits.sequences:,}"]


def _marked(text: str, chosen: bool) -> str:
    return f"[bold]{escape(text)} *[/bold]" if chosen else escape(text)


def _table(*columns: str, title: str = "") -> Table:
    """Columns by their headings; ``>`` aligns one to the right."""
    table = Table(box=None, pad_edge=False, show_header=bool(title), padding=(0, 2, 0, 0), title_justify="left")
    table.title = Text(title, style="bold") if title else None
    for column in columns:
        table.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", no_wrap=True)
    return table
