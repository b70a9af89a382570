"""`/login` and `/logout`: a browser shows its key once and gets a cookie, since it can send no header with a page.

The cookie is out of reach of scripts, goes to this site only (`SameSite=Strict`), and counts only when the browser says
that the request comes from this very origin (see `credentials`).
"""

from __future__ import annotations

from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from lpx.server.api_keys import ApiKey
from lpx.server.credentials import cookie_name, is_same_origin, key_of, session_token
from lpx.server.errors import HttpError
from lpx.server.limits import check_content_type, parse_json_object, read_body
from lpx.server.login_page import login_page
from lpx.server.service import Service, service_of
from lpx.server.sessions import LIFETIME_S

router = APIRouter()

_MAX_BODY_BYTES = 4096


@router.get("/login")
async def show_login(request: Request) -> Response:
    """The page; for scripts (`Accept: application/json`), whether a key is needed and who is signed in."""
    service = service_of(request)
    key = key_of(request.scope, service.keys, service.sessions) if service.keys else None
    if "text/html" not in request.headers.get("accept", ""):
        return JSONResponse(
            {
                "key_required": bool(service.keys),
                "signed_in": key is not None or not service.keys,
                "name": None if key is None else key.name,
            }
        )
    if key is not None or not service.keys:
        return RedirectResponse("/", status_code=303)
    return login_page(request.scope, 200)


@router.post("/login")
async def login(request: Request) -> Response:
    """A form from the page (303 to /), or JSON `{"key": …}` from a script (204)."""
    service = service_of(request)
    if not is_same_origin(request.scope):
        raise HttpError(403, "Only pages of this server may sign in here.", code="origin_not_allowed")
    is_form = request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded")
    shown = await _shown_key(request, service, is_form)
    address = request.client.host if request.client else ""
    if service.keys:  # from here to the note there is no await: none of many at once slips through
        service.logins.check(address)
    key = service.keys.find(shown)
    if service.keys and key is None:
        service.logins.note_wrong_key(address)
        service.count_refusal("key")
        if is_form:
            return login_page(request.scope, 401, failed=True)
        raise HttpError(401, "This API key is not accepted.", code="invalid_api_key")
    response = RedirectResponse("/", status_code=303) if is_form else Response(status_code=204)
    if key is not None:
        _set_cookie(response, request, service, key)
    return response


async def _shown_key(request: Request, service: Service, is_form: bool) -> str:
    if not is_form:
        check_content_type(request)
    body = await read_body(request, service.settings, limit=_MAX_BODY_BYTES)
    if is_form:
        try:
            fields = parse_qs(body.decode("latin-1"), max_num_fields=8)
        except ValueError:
            raise HttpError(400, "The form has too many fields; it takes one, key.", param="key") from None
        return fields.get("key", [""])[0].strip()
    shown = parse_json_object(body, 8).get("key")
    if not isinstance(shown, str):
        raise HttpError(400, 'The body must be {"key": "…"}.', param="key")
    return shown.strip()


def _set_cookie(response: Response, request: Request, service: Service, key: ApiKey) -> None:
    response.set_cookie(
        cookie_name(request.scope),
        service.sessions.begin(key),
        max_age=LIFETIME_S,
        path="/",
        secure=request.scope["scheme"] == "https",
        httponly=True,
        samesite="strict",
    )


@router.post("/logout")
async def logout(request: Request) -> Response:
    service = service_of(request)
    if (token := session_token(request.scope)) is not None:
        service.sessions.end(token)
    response = Response(status_code=204)
    response.delete_cookie(
        cookie_name(request.scope),
        path="/",
        secure=request.scope["scheme"] == "https",
        httponly=True,
        samesite="strict",
    )
    return response
