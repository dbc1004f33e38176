"""What a worker does before torch, which takes seconds to import: a start in vain ends here, and costs little."""

import importlib.metadata
import logging
from typing import TYPE_CHECKING

from model_worker.model.errors import ModelLoadError
from model_worker.model.files import check_model
from model_worker.settings import WorkerSettings
from service import logs, model_settings
from service.process import follow_parent

if TYPE_CHECKING:
    from model_worker.engine.manager_client import ManagerClient

logger = logging.getLogger(__name__)


def run(settings: WorkerSettings, manager: "ManagerClient | None" = None) -> int:
    """Serve until SIGTERM or SIGINT, as ``app.run``; what keeps the model from ever being loaded is told first.

    Returns the exit status.
    """
    follow_parent()
    logs.set_up("model_worker", settings.log_level)
    model_settings.warn_of_variables(WorkerSettings)
    if foreign := _foreign_kernels():
        logger.error("%s", foreign)
        return 1
    try:
        check_model(settings.model)
    except ModelLoadError as error:
        logger.error("--model: %s", error)
        return 1
    from model_worker import app

    return app.run(settings, manager)


def _foreign_kernels() -> str | None:
    """The PyPI distribution ``kernels`` installs a package of the same name as ours, over it or under it."""
    try:
        version = importlib.metadata.version("kernels")
    except importlib.metadata.PackageNotFoundError:
        return None
    return (
        f"the distribution 'kernels' {version} is installed and shadows Octavo's own package of that name: "
        "run `pip uninstall kernels` and install octavo again"
    )
