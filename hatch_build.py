"""Build hook: compiles the CPU kernels into the wheel, or into the tree of an editable install."""

import importlib.util
import platform
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CpuKernelsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Without a compiler the wheel is built all the same: kernels then run on their plain torch reference."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        build = _load_build(Path(self.root))
        try:
            library = build.build()
        except build.BuildError as error:
            self.app.display_warning(f"building without the CPU kernels: {error}")
            return
        build_data["artifacts"].append(library.relative_to(self.root).as_posix())
        build_data["pure_python"] = False
        # The library is reached by ctypes: it fits any Python 3, but one kind of machine.
        build_data["tag"] = f"py3-none-{sys.platform}_{platform.machine()}"


def _load_build(root: Path) -> ModuleType:
    """kernels/cpu/build.py by its path: importing the package would need torch."""
    spec = importlib.util.spec_from_file_location("octavo_cpu_build", root / "kernels" / "cpu" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
