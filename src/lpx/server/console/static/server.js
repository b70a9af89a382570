// Requests to the service this page came from. Paths are relative: the page may lie behind a proxy's prefix.

export class ServerError extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** The session is over, or the server was restarted: its own page asks for the key. */
function signIn() {
  location.assign("login");
}

async function request(path, options = {}) {
  const response = await fetch(path, options);
  if (response.ok) return response;
  if (response.status === 401) signIn();
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // Not from LPX: a proxy's page, say.
  }
  throw new ServerError(response.status, String(error.message ?? ""), error.code);
}

export async function getJson(path, options) {
  return (await request(path, options)).json();
}

export async function postJson(path, body, options = {}) {
  const headers = { "content-type": "application/json" };
  return request(path, { method: "POST", headers, body: JSON.stringify(body), ...options });
}

/** Whether keys are used and this browser is signed in; null when the server has no sign-in. */
export async function signedIn() {
  try {
    const response = await fetch("login", { headers: { accept: "application/json" } });
    return response.ok ? await response.json() : null;
  } catch {
    return null;
  }
}

export async function signOut() {
  await fetch("logout", { method: "POST" });
  signIn();
}

/** State of the server while it loads: {status, phase, progress}. */
export async function health() {
  return (await fetch("health")).json();
}

/**
 * The events of a streamed answer, as objects. Ends after "[DONE]"; throws `ServerError` for a refusal or an error event,
 * and an error without a status when the stream ends early.
 */
export async function* streamed(path, body, signal) {
  const response = await postJson(path, { ...body, stream: true, stream_options: { include_usage: true } }, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) throw new Error("ended early");
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const data = event.replace(/^data: ?/, "");
        if (event.startsWith(":") || !event.startsWith("data:")) continue;
        if (data === "[DONE]") return;
        const news = JSON.parse(data);
        if (news.error) throw new ServerError(0, String(news.error.message), news.error.code);
        yield news;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
