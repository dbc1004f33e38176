"""The commands of ``octavo``. Each imports what it needs when it runs, so that ``--help`` answers at once."""

import typer

from cli.abort import abort
from cli.cache_reset import reset_cache
from cli.chat import chat
from cli.check import check
from cli.drain import drain
from cli.estimate.command import estimate
from cli.gateway_lists import tenants, workers
from cli.generate import generate
from cli.inspection import inspect
from cli.models import models
from cli.playback import replay
from cli.serve import serve
from cli.simulate.command import simulate
from cli.tour.command import tour

app = typer.Typer(
    name="octavo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # in markup, "[default: ...]" of an option's help would be a tag and not be shown
    help="Serve large language models from a paged KV cache managed by a service of its own.",
)
app.command()(serve)
app.command()(generate)
app.command()(chat)
app.command()(inspect)
app.command()(check)
app.command()(workers)
app.command()(tenants)
app.add_typer(drain, name="drain")
app.command()(abort)
app.command()(reset_cache)
app.command()(replay)
app.command()(estimate)
app.command()(tour)
app.command()(simulate)
app.add_typer(models, name="models")
