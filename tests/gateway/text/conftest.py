import importlib.util
import sys
from pathlib import Path

import pytest

from gateway.text.tokenizer import Tokenizer

# Test folders are no packages (importmode=importlib), so the shared builders are loaded by path, once, under a name.
_NAME = "toy_tokenizers"
if _NAME not in sys.modules:
    spec = importlib.util.spec_from_file_location(_NAME, Path(__file__).with_name(f"{_NAME}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = module
    spec.loader.exec_module(module)


@pytest.fixture(scope="session")
def demo_tokenizer(demo_model: Path) -> Tokenizer:
    return Tokenizer.from_folder(demo_model)
