"""The OpenAPI document as a page for people: made here, without scripts or anything from elsewhere."""

from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: auto; padding: 1rem; overflow-wrap: anywhere; }
summary { cursor: pointer; padding: .3rem 0; }
code { font: .9em ui-monospace, monospace; }
b { display: inline-block; min-width: 4.5rem; font-family: ui-monospace, monospace; }
table { border-collapse: collapse; } td { padding: .1rem .8rem .1rem 0; vertical-align: top; }
"""


def reference_page(schema: dict[str, Any]) -> str:
    """The whole page."""
    info = schema["info"]
    operations = [
        (path, method, operation)
        for path, item in sorted(schema["paths"].items())
        for method, operation in item.items()
        if isinstance(operation, dict)
    ]
    parts = "\n".join(_operation(path, method, operation) for path, method, operation in operations)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(info["title"])} API</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>'
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info.get('description', ''))}</p>"
        f'<p>The same as <a href="openapi.json">openapi.json</a>.</p>{parts}</body></html>'
    )


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    text = operation.get("description") or operation.get("summary", "")
    rows = "".join(_parameter(each) for each in operation.get("parameters", []))
    answers = "".join(
        f"<tr><td><code>{escape(status)}</code><td>{escape(answer.get('description', ''))}"
        for status, answer in sorted(operation.get("responses", {}).items())
    )
    bodies = ", ".join(operation.get("requestBody", {}).get("content", {}))
    body = f"<p>Body: <code>{escape(bodies)}</code></p>" if bodies else ""
    return (
        f"<details><summary><b>{escape(method.upper())}</b> <code>{escape(path)}</code></summary><p>{escape(text)}</p>"
        f"{f'<table>{rows}</table>' if rows else ''}{body}<table>{answers}</table></details>"
    )


def _parameter(parameter: dict[str, Any]) -> str:
    text = parameter.get("description") or parameter.get("schema", {}).get("type", "")
    where = "" if parameter["in"] == "query" else f" ({parameter['in']})"
    return f"<tr><td><code>{escape(parameter['name'])}</code>{escape(where)}<td>{escape(str(text))}"
