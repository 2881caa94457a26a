"""The first page of the site: how does it stay the README?

Input: README.md. Output: `index.md`, in the build only. Links into docs/ become links between
pages; links to other files of the repository become their names.
"""

import pathlib
import re

from mkdocs.structure.files import File

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)")


def on_files(files, config):
    """Adds the page. Called by mkdocs."""
    readme = pathlib.Path(config.config_file_path).parent / "README.md"
    text = _LINK.sub(_relink, readme.read_text("utf-8"))
    files.append(File.generated(config, "index.md", content=text))
    return files


def _relink(link):
    mark, text, path, anchor = link.groups()
    if path.startswith("docs/"):
        return f"{mark}[{text}]({path.removeprefix('docs/')}{anchor or ''})"
    return f"{text} (`{path}`)" if text.strip("`") != path else f"`{path}`"
