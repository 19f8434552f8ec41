"""Add pages to the site that are not in docs/: the commands, the configuration, CONTRIBUTING.md and CHANGELOG.md.

A hook of MkDocs (mkdocs.yml). It reads the help of the commands, and the keys and comments of the files in conf/.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
import yaml
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from raysearch.cli import app
from raysearch.configuration.reference import reference_page

ROOT = Path(__file__).resolve().parents[1]
CONF, DOCS = ROOT / "conf", ROOT / "docs"
GROUPS = sorted(folder.name for folder in CONF.iterdir() if folder.is_dir())
#: Documents outside docs/ that have a page.
OUTSIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s:#]*)((?:#[^)\s]*)?)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put a page for each group of conf/ into the navigation."""
    assert config.nav
    (reference,) = (part["Reference"] for part in config.nav if "Reference" in part)
    pages = [{f"{group}=": f"reference/configuration/{group}.md"} for group in GROUPS]
    reference.append(
        {"Configuration": ["reference/configuration/index.md", {"All keys": "reference/configuration/keys.md"}, *pages]}
    )
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here."""
    pages = {"reference/commands.md": _commands(), "reference/configuration/index.md": _jobs()}
    pages["reference/configuration/keys.md"] = reference_page()
    pages |= {f"reference/configuration/{group}.md": _group(group) for group in GROUPS}
    pages |= {page: (ROOT / name).read_text(encoding="utf-8") for name, page in OUTSIDE.items()}
    for place, content in pages.items():
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make links to files outside of docs/ their names, and formulas MathML: both work without a network."""
    sources = {page_name: ROOT / name for name, page_name in OUTSIDE.items()}
    source = sources.get(page.file.src_uri, DOCS / page.file.src_uri)

    def linked(link: re.Match[str]) -> str:
        text, path, anchor = link.groups()
        target = (source.parent / path).resolve()
        if not path or not target.is_relative_to(ROOT):
            return link[0]
        place = target.relative_to(ROOT).as_posix()
        if place in OUTSIDE or target.is_relative_to(DOCS):
            linked_page = DOCS / OUTSIDE.get(place, target)
            return f"[{text}]({os.path.relpath(linked_page, (DOCS / page.file.src_uri).parent)}{anchor})"
        return f"`{place}`" if text.strip("`") in (place, target.name) else f"{text} (`{place}`)"

    formula = re.compile(r"\$\$(.+?)\$\$", flags=re.DOTALL)
    markdown = formula.sub(lambda match: f"<div>{convert(match[1].strip(), display='block')}</div>", markdown)
    return LINK.sub(linked, markdown)


def _commands() -> str:
    """Return the page of the commands: the help of each."""
    cli: Any = typer.main.get_command(app)
    parts = ["# Commands", "Layers are 0-based everywhere. Every command has `--help`."]
    commands = dict(cli.commands)
    for name, command in cli.commands.items():
        commands |= {f"{name} {sub}": subcommand for sub, subcommand in getattr(command, "commands", {}).items()}
    for name, command in commands.items():
        context = command.make_context(name, [], resilient_parsing=True, terminal_width=110, max_content_width=110)
        context.info_name = f"raysearch {name}"
        parts += [f"## raysearch {name}", f"```text\n{command.get_help(context).strip()}\n```"]
    return "\n\n".join(parts) + "\n"


def _jobs() -> str:
    """Return the page of the commands' own files: the default of each group, and the keys that belong to no group."""
    parts = [
        "# Configuration",
        "The overrides of a command are `key=value`. An override such as `searcher=beam` chooses a file of a group; "
        "others set one key. `raysearch config searcher=beam` prints all values, each with its origin. "
        "[All keys](keys.md) have a type and a meaning.",
        "Groups: " + ", ".join(f"[`{group}=`]({group}.md)" for group in GROUPS) + ".",
    ]
    for file in sorted(CONF.glob("*.yaml")):
        parts += _section(
            file, f"raysearch {file.stem}" if file.stem != "evaluation" else "Keys that several commands share"
        )
    return "\n\n".join(parts) + "\n"


def _group(group: str) -> str:
    """Return the page of a group: its choices, and the keys, defaults and comments of each."""
    parts = [f"# {group}="]
    if group in ("model", "study"):
        parts.append("Keys that a file does not set are in [the commands' own files](index.md).")
    for file in sorted((CONF / group).glob("*.yaml")):
        parts += _section(file, f"{group}={file.stem}")
    return "\n\n".join(parts) + "\n"


def _section(file: Path, title: str) -> list[str]:
    """Return a file as a heading, its commands, its remarks and the table of its keys."""
    text = file.read_text(encoding="utf-8")
    top = [line.removeprefix("#").strip() for line in text.split("\n\n")[0].splitlines() if line.startswith("#")]
    commands = [line for line in top if line.startswith("raysearch ")]
    remarks = " ".join(line for line in top if not line.startswith(("raysearch ", "@package")))
    parts = [f"## {title}"]
    if commands:
        parts.append("\n".join(["```console", *(f"$ {line}" for line in commands), "```"]))
    rows = list(_rows(text))
    parts += [_cell(remarks)] if remarks else []
    if rows:
        table = ["| key | default | |", "|---|---|---|"]
        table += [
            f"| `{key}` | {f'`{_cell(value)}`' if value else ''} | {_cell(comment)} |" for key, value, comment in rows
        ]
        parts.append("\n".join(table))
    return parts


def _rows(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield each key of a YAML file with its value as written and the comment next to it."""
    lines, node = text.splitlines(), yaml.compose(text)

    def walk(prefix: str, mapping: yaml.MappingNode) -> Iterator[tuple[str, str, str]]:
        for key, value in mapping.value:
            name = f"{prefix}{key.value}"
            if name == "defaults":
                for default in value.value:
                    if isinstance(default, yaml.MappingNode):
                        group, chosen = default.value[0]
                        yield f"{group.value.split()[-1].lstrip('/')}=", chosen.value, ""
                    elif default.value != "_self_":
                        yield "defaults", default.value, "keys not set here come from that file"
            elif isinstance(value, yaml.MappingNode) and not value.flow_style:
                comment = _comment(lines[key.end_mark.line][key.end_mark.column :])
                yield from [(name, "", comment)] if comment else []
                yield from walk(f"{name}.", value)
            else:
                written = text[value.start_mark.index : value.end_mark.index].rstrip()
                last = value.start_mark.line + written.count("\n")
                comment = _comment(lines[last].rpartition(written.splitlines()[-1])[2] if written else lines[last])
                yield name, " ".join(line.partition(" #")[0].strip() for line in written.splitlines()), comment

    if isinstance(node, yaml.MappingNode):
        yield from walk("", node)


def _comment(text: str) -> str:
    """Return the comment in what follows a value on its line."""
    match = re.search(r"(?:^|\s)#\s?(.*)$", text)
    return match[1] if match else ""


def _cell(text: str) -> str:
    """Return text for a cell of a table."""
    return re.sub(r"<(?=\w)", "&lt;", text).replace("|", "\\|")
