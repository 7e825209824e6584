// A server that answers like a model with one thing on its mind, for the page's tests. The last message of a request
// says what the answer is to be.

import { createServer } from "node:http";
import { readFileSync } from "node:fs";

const TYPES = { html: "text/html; charset=utf-8", js: "text/javascript", css: "text/css", svg: "image/svg+xml" };
const POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
  "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

export const KEY = "secret-key";

export const ANSWERS = {
  "show markdown": readFileSync(new URL("answer.md", import.meta.url), "utf8"),
  "attack": "<img src=x onerror=\"window.hacked=1\"> <script>window.hacked=1</script>\n\n[click](javascript:window.hacked=1) " +
    "![picture](https://example.com/x.png)\n\n```html\n<script>window.hacked=1</script>\n```\n\n[data](data:text/html,x)",
};

/** `state.key`: whether a key is asked for; `state.requests`: the bodies that came. */
export function serve(folder) {
  const state = { key: false, requests: [], models: ["small-model", "another/large-model-Q4_K_M"] };
  const server = createServer((request, response) => {
    const path = request.url === "/" ? "page/index.html" : request.url.slice(1);
    if (path.startsWith("page/")) return file(folder, path.slice(5), response);
    if (state.key && request.headers.authorization !== `Bearer ${KEY}`) {
      return json(response, 401, { error: { message: "An API key is needed.", type: "authentication_error" } });
    }
    if (path === "v1/models") {
      return json(response, 200, { object: "list", data: state.models.map((id) => ({ id, context_length: 4096 })) });
    }
    if (path === "v1/chat/completions") return body(request, (text) => answer(JSON.parse(text), state, response));
    return json(response, 404, { error: { message: `There is no ${path}.` } });
  });
  return new Promise((resolve) => {
    server.listen(0, "127.0.0.1", () => resolve({ server, state, url: `http://127.0.0.1:${server.address().port}/` }));
  });
}

function file(folder, name, response) {
  if (!/^[a-z]+\.[a-z]+$/.test(name)) return json(response, 404, {});
  response.writeHead(200, { "Content-Type": TYPES[name.split(".")[1]], "Content-Security-Policy": POLICY });
  return response.end(readFileSync(new URL(name, folder)));
}

function json(response, status, value) {
  response.writeHead(status, { "Content-Type": "application/json" });
  response.end(JSON.stringify(value));
}

function body(request, then) {
  let text = "";
  request.setEncoding("utf8").on("data", (part) => { text += part; }).on("end", () => then(text));
}

function answer(request, state, response) {
  state.requests.push(request);
  const question = request.messages.at(-1).content;
  if (question === "refuse") {
    return json(response, 400, { error: { message: "The prompt has 9000 tokens; the context has 4096.", type: "x" } });
  }
  response.writeHead(200, { "Content-Type": "text/event-stream" });
  const send = (value) => response.write(`data: ${JSON.stringify(value)}\n\n`);
  const delta = (value, finish = null) => send({ choices: [{ index: 0, delta: value, finish_reason: finish }] });
  delta({ role: "assistant", content: "" });
  if (question === "think") delta({ reasoning_content: "First I **consider** it.\n\nThen I decide." });
  const text = ANSWERS[question] ?? `You said: ${question} (${state.requests.length})`;
  const words = question === "endless" ? null : text.match(/[\s\S]{1,7}/g);
  let index = 0;
  const timer = setInterval(() => {
    if (question === "break" && index === 3) {
      clearInterval(timer);
      response.write("event: error\ndata: {\"error\":{\"message\":\"The engine failed.\"}}\n\n");
      return response.end();
    }
    if (!words || index < words.length) return delta({ content: words?.[index++] ?? `word ${index++} ` });
    clearInterval(timer);
    delta({}, "stop");
    const usage = { prompt_tokens: 21, completion_tokens: index, total_tokens: 21 + index };
    send({ choices: [], usage, timings: { predicted_per_second: 123.44 } });
    response.write("data: [DONE]\n\n");
    return response.end();
  }, 2);
  response.on("close", () => {
    clearInterval(timer);
    state.closed = (state.closed ?? 0) + 1;
  });
  return undefined;
}
