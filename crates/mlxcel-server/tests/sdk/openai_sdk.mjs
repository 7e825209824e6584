// The official Node.js client of OpenAI against a server that follows the script of the tests.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const [address, folder] = process.argv.slice(2);
const { default: OpenAI } = await import(createRequire(`${folder}/package.json`).resolve("openai"));
const Client = OpenAI.OpenAI ?? OpenAI;
const client = new Client({ baseURL: `${address}/v1`, apiKey: "sesame", maxRetries: 0 });
const said = (content) => [{ role: "user", content }];
const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object" } } }];

const answer = await client.chat.completions.create({ model: "script", messages: said("A"), max_tokens: 3 });
assert.equal(answer.choices[0].message.content, "BCD");

let text = "";
const stream = await client.chat.completions.create({ model: "script", messages: said("A"), stream: true });
for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
assert.equal(text, "BCDEFGHIJKLMNOPQRSTUVWXYZ");

const called = await client.chat.completions.create({ model: "script", messages: said("1"), tools });
assert.deepEqual(JSON.parse(called.choices[0].message.tool_calls[0].function.arguments), { city: "Bern" });

const response = await client.responses.create({ model: "script", input: "A", max_output_tokens: 2 });
assert.equal(response.output_text, "BC");

let streamed = "";
for await (const event of await client.responses.create({ model: "script", input: "A", stream: true })) {
  if (event.type === "response.output_text.delta") streamed += event.delta;
}
assert.equal(streamed, "BCDEFGHIJKLMNOPQRSTUVWXYZ");

const models = await client.models.list();
assert.equal(models.data[0].id, "script");

await assert.rejects(
  client.chat.completions.create({ model: "script", messages: said("A"), temperature: -1 }),
  (error) => error.status === 400 && error.param === "temperature",
);
console.log("ok");
