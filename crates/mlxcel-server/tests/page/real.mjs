// Uses the chat page of the real server, which asks for a key. The model behind it writes the alphabet after the last
// letter of the question.
// node real.mjs CHROMIUM URL KEY

import assert from "node:assert/strict";
import { Browser } from "./browser.mjs";

const [chromium, url, key] = process.argv.slice(2);
const browser = new Browser(chromium);
try {
  const page = await browser.page({});
  await page.open(url);
  await page.until("!document.getElementById('notice').hidden", "the question for a key");
  await page.click("#notice button");
  await page.type(key);
  await page.press("Enter");
  await page.until("document.querySelectorAll('#model option').length === 1", "the model");
  await page.click("#input");
  await page.type("Go on after A");
  await page.press("Enter");
  await page.until("document.querySelector('#messages .stats')", "an answer");
  const text = (selector) => page.value(`document.querySelector(${JSON.stringify(selector)}).textContent`);
  assert.equal(await text("#messages li.assistant .body"), "BCDEFGHIJKLMNOPQRSTUVWXYZ");
  assert.match(await text("#messages li.assistant .stats"), /^\d+ tokens · [\d.]+ tok\/s · first after/);
  assert.match(await text("#context"), /^\d+ \/ 512 tokens$/);
  const problems = page.problems.filter((problem) => !problem.includes("401"));
  assert.deepEqual(problems, [], "errors in the console");
  assert.deepEqual(page.requests.filter((request) => !request.startsWith(url)), [], "requests to elsewhere");
  console.log("the page works with the server");
} finally {
  await browser.close();
}
