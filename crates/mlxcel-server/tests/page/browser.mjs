// Drives a headless Chromium over its debugging pipe; no packages needed.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

export class Browser {
  #child;
  #next = 1;
  #waiting = new Map();
  #listeners = [];
  #profile = mkdtempSync(join(tmpdir(), "mlxcel-page-"));

  constructor(path) {
    const flags = [
      "--headless=new", "--remote-debugging-pipe", `--user-data-dir=${this.#profile}`, "--no-first-run", "--no-sandbox",
      "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update",
      "--hide-scrollbars", "--force-color-profile=srgb", "about:blank",
    ];
    this.#child = spawn(path, flags, { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
    let rest = "";
    this.#child.stdio[4].setEncoding("utf8").on("data", (text) => {
      const messages = (rest + text).split("\0");
      rest = messages.pop();
      messages.forEach((message) => this.#receive(JSON.parse(message)));
    });
    this.#child.on("exit", () => {
      for (const { reject } of this.#waiting.values()) reject(new Error("the browser ended"));
    });
  }

  #receive(message) {
    const waiting = this.#waiting.get(message.id);
    if (!waiting) {
      this.#listeners.forEach((listener) => listener(message));
      return;
    }
    this.#waiting.delete(message.id);
    if (message.error) waiting.reject(new Error(`${waiting.method}: ${message.error.message}`));
    else waiting.resolve(message.result);
  }

  send(method, params = {}, sessionId = undefined) {
    const id = this.#next++;
    this.#child.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    return new Promise((resolve, reject) => this.#waiting.set(id, { resolve, reject, method }));
  }

  onEvent(listener) {
    this.#listeners.push(listener);
  }

  async page(options) {
    const { browserContextId } = await this.send("Target.createBrowserContext");
    const { targetId } = await this.send("Target.createTarget", { url: "about:blank", browserContextId });
    const { sessionId } = await this.send("Target.attachToTarget", { targetId, flatten: true });
    const page = new Page(this, sessionId, targetId);
    await page.prepare(options);
    return page;
  }

  async close() {
    const ended = new Promise((resolve) => this.#child.once("exit", resolve));
    await this.send("Browser.close").catch(() => {});
    await ended;
    rmSync(this.#profile, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
  }
}

class Page {
  problems = [];
  requests = [];

  constructor(browser, session, target) {
    this.browser = browser;
    this.session = session;
    this.target = target;
  }

  send(method, params) {
    return this.browser.send(method, params, this.session);
  }

  async prepare({ width = 1100, height = 760, mobile = false, scheme = "light" }) {
    this.browser.onEvent(({ sessionId, method, params }) => {
      if (sessionId === this.session) this.#note(method, params);
    });
    for (const domain of ["Page", "Runtime", "Log", "Network"]) await this.send(`${domain}.enable`);
    await this.send("Emulation.setDeviceMetricsOverride", { width, height, mobile, deviceScaleFactor: 1 });
    if (mobile) await this.send("Emulation.setTouchEmulationEnabled", { enabled: true });
    await this.send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: scheme }] });
  }

  #note(method, params) {
    if (method === "Runtime.exceptionThrown") this.problems.push(params.exceptionDetails.exception?.description);
    if (method === "Log.entryAdded" && params.entry.level === "error") this.problems.push(params.entry.text);
    if (method === "Network.requestWillBeSent") this.requests.push(params.request.url);
    if (method === "Page.javascriptDialogOpening") this.send("Page.handleJavaScriptDialog", { accept: true });
  }

  async open(url) {
    await this.send("Page.navigate", { url });
    await this.until("document.readyState === 'complete'", "the page to load");
  }

  /** The value of an expression in the page; a promise is awaited. */
  async value(expression) {
    const options = { expression, awaitPromise: true, returnByValue: true };
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", options);
    if (exceptionDetails) throw new Error(`${expression}: ${exceptionDetails.exception?.description}`);
    return result.value;
  }

  async until(expression, what) {
    for (let attempt = 0; attempt < 600; attempt += 1) {
      if (await this.value(`Boolean(${expression})`)) return;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    throw new Error(`waited in vain for ${what}`);
  }

  /** Clicks the middle of an element as a person does: what lies above it gets the click. */
  async click(selector) {
    const place = `(() => {
      const element = document.querySelector(${JSON.stringify(selector)});
      element.scrollIntoView({ block: "nearest" });
      const { x, y, width, height } = element.getBoundingClientRect();
      return { x: x + width / 2, y: y + height / 2, width };
    })()`;
    const { x, y, width } = await this.value(place);
    if (!width) throw new Error(`${selector} cannot be clicked: it is not shown`);
    for (const type of ["mouseMoved", "mousePressed", "mouseReleased"]) {
      const button = type === "mouseMoved" ? "none" : "left";
      await this.send("Input.dispatchMouseEvent", { type, x, y, button, clickCount: 1 });
    }
  }

  async type(text) {
    await this.send("Input.insertText", { text });
  }

  /** Presses a key such as `Enter`, or `Ctrl+Shift+o`. */
  async press(combination) {
    const parts = combination.split("+");
    const key = parts.pop();
    const bits = { Alt: 1, Ctrl: 2, Meta: 4, Shift: 8 };
    const modifiers = parts.reduce((sum, part) => sum + bits[part], 0);
    const codes = { Enter: 13, Escape: 27, Tab: 9 };
    const text = key === "Enter" ? "\r" : key.length === 1 && !modifiers ? key : undefined;
    const event = { key, modifiers, text, windowsVirtualKeyCode: codes[key] ?? key.toUpperCase().charCodeAt(0) };
    await this.send("Input.dispatchKeyEvent", { type: "keyDown", ...event });
    await this.send("Input.dispatchKeyEvent", { type: "keyUp", ...event, text: undefined });
  }

  async screenshot(file) {
    const { data } = await this.send("Page.captureScreenshot", { format: "png" });
    writeFileSync(file, Buffer.from(data, "base64"));
  }
}
