"""The page that asks a browser for the key: no scripts, nothing loaded from anywhere, English or Chinese."""

from __future__ import annotations

import base64
from hashlib import sha256
from html import escape

from starlette.responses import HTMLResponse
from starlette.types import Scope

from lpx.server.credentials import header

_TEXTS = {
    "en": ("API key", "This server needs an API key.", "Sign in", "This key is not accepted."),
    "zh": ("API 密钥", "此服务需要 API 密钥。", "登录", "该密钥无效。"),
}
_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 0; min-height: 100vh; display: grid; place-items: center; }
form { width: min(22rem, 90vw); display: grid; gap: .75rem; }
h1 { font-size: 1.1rem; margin: 0; }
input, button { font: inherit; padding: .6rem .7rem; border-radius: .4rem; border: 1px solid #8888; }
button { cursor: pointer; background: #2563eb; color: #fff; border-color: #2563eb; }
p { margin: 0; color: #c0392b; }
@media (prefers-color-scheme: dark) { p { color: #ff8a80; } }
"""
_STYLE_HASH = base64.b64encode(sha256(_STYLE.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def login_page(scope: Scope, status: int, *, failed: bool = False) -> HTMLResponse:
    """The page in the browser's language."""
    language = "zh" if (header(scope, b"accept-language") or "").lower().startswith("zh") else "en"
    label, reason, button, wrong = (escape(text) for text in _TEXTS[language])
    note = f'<p role="alert">{wrong}</p>' if failed else ""
    return HTMLResponse(
        f"""<!doctype html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>LPX</title>
<style>{_STYLE}</style>
</head>
<body>
<form method="post" action="/login">
<h1>LPX</h1>
<label for="key">{reason}</label>
<input id="key" name="key" type="password" autocomplete="current-password" aria-label="{label}" required autofocus>
{note}
<button type="submit">{button}</button>
</form>
</body>
</html>
""",
        status_code=status,
        headers={"content-security-policy": _POLICY, "vary": "accept-language, accept"}
        | ({"www-authenticate": "Bearer"} if status == 401 else {}),
    )
