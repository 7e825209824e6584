// The server's OpenAI-compatible API, as far as the page uses it. Knows no elements.

/** An answer that is no success: `status` is 0 if the server could not be reached. */
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

function headers(key) {
  const base = { "Content-Type": "application/json" };
  return key ? { ...base, Authorization: `Bearer ${key}` } : base;
}

async function call(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached. Is it still running?", 0);
  }
  if (response.ok) return response;
  const text = await response.text().catch(() => "");
  throw new ApiError(messageOf(text) || `The server answered ${response.status}.`, response.status);
}

function messageOf(text) {
  try {
    const { error } = JSON.parse(text);
    return typeof error === "string" ? error : error?.message;
  } catch {
    return text.slice(0, 300);
  }
}

/** The models the server has: `{id, context}` each, `context` null if the server does not say. */
export async function models(key) {
  const response = await call("v1/models", { headers: headers(key) });
  const { data } = await response.json();
  return data.map((model) => ({
    id: model.id,
    context: model.context_length ?? model.max_model_len ?? model.meta?.n_ctx ?? model.meta?.n_ctx_train ?? null,
  }));
}

/** Server-sent events as they arrive: the texts after `data:`, with the event's name. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      rest += done ? "\n\n" : value.replaceAll("\r\n", "\n");
      const parts = rest.split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const fields = part.split("\n");
        const texts = fields.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
        const name = fields.find((line) => line.startsWith("event:"))?.slice(6).trim();
        if (texts.length) yield { name, data: texts.join("\n") };
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/**
 * Streams an answer. Yields `{content}`, `{reasoning}`, `{finish}` and `{usage, timings}` as they come; throws an
 * `ApiError` for a refusal, also one in the middle of the stream.
 */
export async function* chat({ request, key, signal }) {
  const body = JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } });
  const response = await call("v1/chat/completions", { method: "POST", headers: headers(key), body, signal });
  let ended = false;
  for await (const { name, data } of events(response.body)) {
    if (data === "[DONE]") {
      ended = true;
      break;
    }
    const chunk = JSON.parse(data);
    if (name === "error" || chunk.error) {
      throw new ApiError(messageOf(data) || "The server stopped with an error.", 500);
    }
    yield* parts(chunk);
  }
  if (!ended) throw new ApiError("The connection ended before the answer did.", 0);
}

function* parts(chunk) {
  const choice = chunk.choices?.[0];
  const reasoning = choice?.delta?.reasoning_content ?? choice?.delta?.reasoning;
  if (reasoning) yield { reasoning };
  if (choice?.delta?.content) yield { content: choice.delta.content };
  if (choice?.finish_reason) yield { finish: choice.finish_reason };
  if (chunk.usage || chunk.timings) yield { usage: chunk.usage, timings: chunk.timings };
}
