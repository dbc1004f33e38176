"""Writes the map of docs/architecture.md: every module and the first line of its docstring.

make map
"""

import ast
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN = "<!-- map: written by docs/make_map.py -->"
END = "<!-- end of map -->"
FOLDERS = ("kv_manager", "model_worker", "gateway", "kernels", "service", "cli", "protos")


def modules() -> list[Path]:
    """Modules that git tracks or will once they are added, generated stubs and empty package files left out."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *FOLDERS]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    named = (Path(name) for name in listed if not name.endswith(("_pb2.py", "_pb2_grpc.py", ".pyi")))
    return sorted(path for path in set(named) if path.suffix in (".py", ".proto") and title(path))


def title(path: Path) -> str:
    """What a module says it is, in one line; empty for an empty ``__init__.py``."""
    text = (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).exists() else ""
    if path.suffix == ".proto":
        return text.splitlines()[0].removeprefix("//").strip()
    if not text.strip():
        return ""
    said = ast.get_docstring(ast.parse(text)) or "(it does not say)"
    return said.splitlines()[0]


def render() -> str:
    """The map as markdown: a list per folder, packages first."""
    lines: list[str] = []
    folder = None
    for path in sorted(modules(), key=lambda path: (FOLDERS.index(path.parts[0]), path.parent, path.name)):
        if path.parent != folder:
            folder = path.parent
            lines += ["", f"**`{folder}/`**", ""]
        lines.append(f"- `{path.name}`: {title(path)}")
    return "\n".join(lines).strip()


def put_into(page: str, rendered: str) -> str:
    """The page with the text between the two marks replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{rendered}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(put_into(PAGE.read_text(encoding="utf-8"), render()), encoding="utf-8")
