// Uses the chat page as a person does, in a real Chromium, and fails if anything is not as expected.
// node page.mjs CHROMIUM [FOLDER FOR SCREENSHOTS]

import assert from "node:assert/strict";
import { join } from "node:path";
import { Browser } from "./browser.mjs";
import { KEY, serve } from "./fake.mjs";

const [chromium, pictures] = process.argv.slice(2);
const { server, state, url } = await serve(new URL("../../src/page/", import.meta.url));
const browser = new Browser(chromium);

const tests = [];
const test = (name, run, options = {}) => tests.push({ name, run, options });
const shot = async (page, name) => pictures && page.screenshot(join(pictures, `${name}.png`));
const last = (selector) => `document.querySelector("#messages > li:last-child ${selector}")`;
const MODELS = "document.querySelectorAll('#model option').length === 2";
const IDLE = "document.getElementById('stop').hidden";

async function ask(page, text) {
  await page.click("#input");
  await page.type(text);
  await page.press("Enter");
}

async function answered(page, text) {
  const count = "document.querySelectorAll('#messages > li').length";
  const before = await page.value(count);
  await ask(page, text);
  await page.until(`${IDLE} && ${count} === ${before + 2}`, "an answer");
}

test("an answer is streamed and its speed and the context are shown", async (page) => {
  await answered(page, "Hello");
  assert.equal(await page.value(`${last(".body")}.textContent`), "You said: Hello (1)");
  assert.match(await page.value(`${last(".stats")}.textContent`), /^3 tokens · 123.4 tok\/s · first after [\d.]+ s$/);
  assert.match(await page.value("document.getElementById('context').textContent"), /^24 \/ 4,096 tokens$/);
  assert.equal(state.requests.at(-1).model, "small-model");
  assert.equal(state.requests.at(-1).stream, true);
  assert.equal(await page.value("document.title"), "Hello – mlxcel");
});

test("markdown becomes elements", async (page) => {
  await answered(page, "show markdown");
  const count = (selector) => page.value(`document.querySelectorAll("li.assistant .body ${selector}").length`);
  const expected = {
    "> h2": 1, "p > strong": 2, "p > em": 1, "strong > em": 1, del: 1, "> ul > li": 4, "ul ol > li": 2,
    "input[checked], input:checked": 1, "> ol > li": 2, "> ol figure.code": 1, "blockquote p": 1, "tbody tr": 2,
    "td.to-right": 2, hr: 1, "figure.code": 2, ".hl-word": 4, "p > a": 2,
  };
  for (const [selector, number] of Object.entries(expected)) assert.equal(await count(selector), number, selector);
  assert.equal(await page.value("document.querySelector('td.to-center').textContent"), "a | b");
  assert.equal(await page.value(`document.querySelector("li.assistant a").href`), "https://example.com/a_(b)");
  assert.match(await page.value(`document.querySelector("li.assistant p").textContent`), /snake_case_words, 2 \* 3 \* 4/);
  assert.match(await page.value("document.querySelector('figure code').textContent"), /^\/\/ A comment\nfn main/);
  const left = "(({ scrollHeight, scrollTop, clientHeight }) => scrollHeight - scrollTop - clientHeight)(document.getElementById('scroll'))";
  await page.until(`${left} < 2`, "the end of the answer to be in sight");
  await shot(page, "light");
  await page.value("document.getElementById('scroll').scrollTop = 0");
  await shot(page, "light-top");
});

test("what a model writes cannot run or load anything", async (page) => {
  await answered(page, "attack");
  assert.equal(await page.value("window.hacked"), undefined);
  const forbidden = "#messages script, #messages img, #messages [onerror], #messages a:not([href^=http])";
  assert.equal(await page.value(`document.querySelectorAll(${JSON.stringify(forbidden)}).length`), 0);
  assert.match(await page.value(`${last(".body")}.textContent`), /<script>window.hacked=1<\/script>/);
});

test("reasoning is folded away", async (page) => {
  await answered(page, "think");
  assert.equal(await page.value(`${last("details")}.open`), false);
  assert.equal(await page.value(`${last("summary")}.textContent`), "Thoughts");
  await page.click("#messages > li:last-child summary");
  assert.equal(await page.value(`${last("details")}.open`), true);
  assert.match(await page.value(`${last(".thoughts")}.textContent`), /First I consider it/);
  await answered(page, "again");
  assert.deepEqual(state.requests.at(-1).messages.map((message) => Object.keys(message).join()), Array(3).fill("role,content"));
  await shot(page, "reasoning");
});

test("Escape stops an answer and the server is told", async (page) => {
  const before = state.closed ?? 0;
  await ask(page, "endless");
  await page.until(`${last(".body")}?.textContent.length > 40`, "some words");
  await shot(page, "running");
  await page.press("Escape");
  await page.until(IDLE, "the end");
  assert.match(await page.value(`${last(".stats")}.textContent`), /stopped$/);
  for (let wait = 0; wait < 100 && (state.closed ?? 0) === before; wait += 1) await new Promise((r) => setTimeout(r, 20));
  assert.equal(state.closed, before + 1);
});

test("an answer is written again and a question is changed", async (page) => {
  await answered(page, "One");
  await answered(page, "Two");
  const requests = state.requests.length;
  await page.click("#messages > li:last-child .foot button[title*='again']");
  await page.until(`${IDLE} && ${last(".body")}.textContent.includes("(${requests + 1})")`, "another answer");
  assert.equal(await page.value("document.querySelectorAll('#messages > li').length"), 4);
  await page.click("#messages > li:first-child .foot button[title^='Change']");
  await page.value("document.querySelector('textarea.edit').select()");
  await page.type("Three");
  await page.press("Enter");
  await page.until(`${IDLE} && ${last(".body")}.textContent.startsWith("You said: Three")`, "an answer to the change");
  assert.equal(await page.value("document.querySelectorAll('#messages > li').length"), 2);
  assert.deepEqual(state.requests.at(-1).messages, [{ role: "user", content: "Three" }]);
});

test("chats are kept and can be opened and deleted", async (page) => {
  await answered(page, "Kept chat");
  await page.press("Ctrl+Shift+o");
  assert.equal(await page.value("document.querySelectorAll('#messages > li').length"), 0);
  await answered(page, "Second chat");
  await page.open(url);
  await page.until("document.querySelectorAll('.entry').length === 2", "the kept chats");
  await page.click(".entry:last-child .title");
  assert.equal(await page.value(`${last(".body")}.textContent.startsWith("You said: Kept chat")`), true);
  await page.click(".entry:last-child .icon");
  await page.until("document.querySelectorAll('.entry').length === 1", "the deletion");
  assert.equal(await page.value("document.querySelectorAll('#messages > li').length"), 0);
});

test("settings are sent, kept and only if they are set", async (page) => {
  await answered(page, "plain");
  assert.deepEqual(Object.keys(state.requests.at(-1)).sort(), ["messages", "model", "stream", "stream_options"]);
  await page.click("#open-settings");
  await page.click("#set-system");
  await page.type("Be brief.");
  for (const [name, value] of [["temperature", "0.25"], ["max_tokens", "64"], ["seed", "7"]]) {
    await page.click(`#set-${name}`);
    await page.type(value);
  }
  await shot(page, "settings");
  await page.click("#settings button.primary");
  await page.open(url);
  await page.until(MODELS, "the models");
  await page.click("#model");
  await page.value("(() => { const m = document.getElementById('model'); m.value = m.options[1].value; m.dispatchEvent(new Event('change')); })()");
  await answered(page, "more");
  const { messages, model, temperature, max_tokens, seed, top_p } = state.requests.at(-1);
  assert.deepEqual({ model, temperature, max_tokens, seed, top_p },
    { model: state.models[1], temperature: 0.25, max_tokens: 64, seed: 7, top_p: undefined });
  assert.deepEqual(messages[0], { role: "system", content: "Be brief." });
});

test("errors say what happened and what to do", async (page) => {
  await answered(page, "refuse");
  assert.equal(await page.value(`${last(".error")}.textContent`), "The prompt has 9000 tokens; the context has 4096.");
  await answered(page, "Once more");
  assert.deepEqual(state.requests.at(-1).messages, [{ role: "user", content: "refuse\n\nOnce more" }], "turns alternate");
  await page.press("Ctrl+Shift+o");
  await answered(page, "break");
  assert.equal(await page.value(`${last(".error")}.textContent`), "The engine failed.");
  assert.match(await page.value(`${last(".body")}.textContent`), /^You said/);
  await shot(page, "error");
  page.problems = page.problems.filter((problem) => !problem.includes("400"));
});

test("a key is asked for and used", async (page) => {
  state.key = true;
  await page.open(url);
  await page.until("!document.getElementById('notice').hidden", "the notice");
  await page.click("#notice button");
  await page.type(KEY);
  await shot(page, "key");
  await page.press("Enter");
  await page.until(MODELS, "the models");
  await answered(page, "with key");
  assert.match(await page.value(`${last(".body")}.textContent`), /^You said: with key/);
  state.key = false;
  page.problems = page.problems.filter((problem) => !problem.includes("401"));
});

test("code and messages are copied", async (page) => {
  await answered(page, "show markdown");
  await page.value("(() => { navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }; })()");
  await page.click("#messages .body > figure [data-copy]");
  await page.until("window.copied", "the code");
  assert.match(await page.value("window.copied"), /^def greet[\s\S]*# done$/);
  await page.click("#messages > li:last-child .foot button");
  await page.until("window.copied.startsWith('# A heading')", "the message as it was written");
});

test("the appearance can be chosen and is kept", async (page) => {
  const ground = "getComputedStyle(document.body).backgroundColor";
  assert.equal(await page.value(ground), "rgb(255, 255, 255)");
  await page.click("#open-settings");
  await page.value("(() => { document.getElementById('set-theme').value = 'dark'; })()");
  await page.press("Escape");
  await page.until(`${ground} === "rgb(21, 25, 26)"`, "the dark");
  await page.open(url);
  await page.until(`${ground} === "rgb(21, 25, 26)"`, "the dark again");
});

test("a person who scrolls up is left alone", async (page) => {
  await ask(page, "endless");
  const area = "document.getElementById('scroll')";
  await page.until(`${area}.scrollTop > 300`, "a long answer");
  await page.send("Input.dispatchMouseEvent", { type: "mouseWheel", x: 600, y: 300, deltaX: 0, deltaY: -250 });
  await page.until(`${area}.scrollHeight - ${area}.scrollTop - ${area}.clientHeight > 100`, "the text above");
  const before = await page.value(`${area}.scrollTop`);
  const length = await page.value(`${last(".body")}.textContent.length`);
  await page.until(`${last(".body")}.textContent.length > ${length + 400}`, "more words");
  assert.ok(Math.abs(await page.value(`${area}.scrollTop`) - before) < 3, "the page did not jump");
});

test("the keyboard is enough", async (page) => {
  await page.value("document.activeElement.blur()");
  await page.press("/");
  assert.equal(await page.value("document.activeElement.id"), "input");
  await page.type("typed");
  await page.press("Enter");
  await page.until(`${IDLE} && ${last(".stats")}`, "an answer");
  const seen = new Set();
  for (let step = 0; step < 30; step += 1) {
    await page.press("Tab");
    seen.add(await page.value("document.activeElement.id || document.activeElement.textContent"));
  }
  for (const name of ["new-chat", "open-settings", "model", "input", "send", "Again", "Copy", "Edit"]) {
    assert.ok(seen.has(name), `Tab reaches ${name}: ${[...seen]}`);
  }
});

test("it is usable in the dark", async (page) => {
  await answered(page, "show markdown");
  await page.value("document.getElementById('scroll').scrollTop = 250");
  await shot(page, "dark");
  const [ground, text] = await page.value("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]");
  assert.deepEqual([ground, text], ["rgb(21, 25, 26)", "rgb(230, 235, 233)"]);
}, { scheme: "dark" });

test("it is usable on a phone", async (page) => {
  await shot(page, "phone-empty");
  await answered(page, "show markdown");
  await page.value("document.getElementById('scroll').scrollTop = 300");
  await shot(page, "phone");
  assert.equal(await page.value("document.documentElement.scrollWidth <= innerWidth"), true, "nothing sticks out");
  await page.click("#open-sidebar");
  await page.until("document.getElementById('sidebar').getBoundingClientRect().x === 0", "the list");
  await shot(page, "phone-list");
  await page.click("#new-chat");
  await page.until("document.getElementById('sidebar').getBoundingClientRect().right <= 0", "the list to go");
  await page.click("#open-sidebar");
  await page.until("document.getElementById('sidebar').getBoundingClientRect().x === 0", "the list");
  await page.click("#open-settings");
  await shot(page, "phone-settings");
}, { width: 390, height: 780, mobile: true });

test("a long answer stays quick to draw", async (page) => {
  await page.value("(async () => { const { MarkdownView } = await import('/page/markdown.js'); window.view = new MarkdownView(document.createElement('div')); })()");
  const text = "const s = \"Para `x` **y**.\\n\\n```js\\nlet a = 1;\\n```\\n\\n\".repeat(2000);";
  const drawn = await page.value(`(() => { ${text} let blocks = 0; for (let end = s.length - 4000; end <= s.length; end += 40) view.update(s.slice(0, end)); return s.length; })()`);
  assert.ok(drawn > 60_000);
  const hostile = await page.value("(() => { view.update('**a '.repeat(5000) + '`'.repeat(3000) + '['.repeat(5000)); view.update('- '.repeat(200) + 'x'); view.update('> '.repeat(200) + 'x'); return 1; })()");
  assert.equal(hostile, 1);
});

let failures = 0;
for (const { name, run, options } of tests) {
  const page = await browser.page(options);
  try {
    state.requests.length = 0;
    await page.open(url);
    await page.until(MODELS, "the models");
    await run(page);
    assert.deepEqual(page.problems, [], "errors in the console");
    const foreign = page.requests.filter((request) => !request.startsWith(url) && !request.startsWith("about:"));
    assert.deepEqual(foreign, [], "requests to elsewhere");
    console.log(`ok: ${name}`);
  } catch (error) {
    failures += 1;
    console.log(`FAILED: ${name}\n${error.stack}`);
    await shot(page, `failed-${failures}`);
  }
  await browser.send("Target.closeTarget", { targetId: page.target });
}
await browser.close();
server.close();
server.closeAllConnections();
console.log(failures ? `${failures} of ${tests.length} failed` : `all ${tests.length} passed`);
process.exit(failures ? 1 : 0);
