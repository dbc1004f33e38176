// The official client for Node: node openai_node.mjs BASE_URL
import fs from "node:fs";
import OpenAI from "openai";
import { answer, failure } from "./answering.mjs";

const wanted = JSON.parse(fs.readFileSync(new URL("requests.json", import.meta.url)));
const client = new OpenAI({ baseURL: process.argv[2], apiKey: "any", maxRetries: 0 });

const chat = (options) =>
  client.chat.completions.create({ model: wanted.model, messages: wanted.messages, ...wanted.greedy, ...options });
const complete = (prompt, options) =>
  client.completions.create({ model: wanted.model, prompt, ...wanted.greedy, ...options });
const usageOf = ({ usage }) => [usage.prompt_tokens, usage.completion_tokens];

async function wholeChat() {
  const found = await chat();
  const { message, finish_reason } = found.choices[0];
  return { text: message.content, finish_reason, usage: usageOf(found) };
}

async function wholeCompletion(prompt) {
  const found = await complete(prompt);
  const { text, finish_reason } = found.choices[0];
  return { text, finish_reason, usage: usageOf(found) };
}

async function stream() {
  const chunks = [];
  for await (const chunk of await chat({ stream: true, stream_options: { include_usage: true } })) chunks.push(chunk);
  const choices = chunks.filter((chunk) => chunk.choices.length).map((chunk) => chunk.choices[0]);
  return {
    pieces: choices.map((choice) => choice.delta.content).filter(Boolean),
    finish_reason: choices.at(-1).finish_reason,
    usage: usageOf(chunks.at(-1)),
  };
}

async function seeds() {
  const texts = [];
  for (const options of [wanted.sampled, wanted.sampled, { ...wanted.sampled, seed: wanted.other_seed }])
    texts.push((await chat(options)).choices[0].message.content);
  return texts;
}

async function leave() {
  const pieces = [];
  for await (const chunk of await chat({ stream: true, max_tokens: wanted.endless_tokens })) {
    if (chunk.choices[0].delta.content) pieces.push(chunk.choices[0].delta.content);
    if (pieces.length === wanted.pieces_before_leaving) break;
  }
  return pieces;
}

async function emoji() {
  const pieces = [];
  for await (const chunk of await complete(wanted.fox, { stream: true, max_tokens: wanted.emoji_tokens }))
    if (chunk.choices[0].text) pieces.push(chunk.choices[0].text);
  return pieces;
}

const facts = (error) => ({
  error: error.constructor.name,
  status: error.status,
  code: error.code,
  param: error.param,
});

await answer({
  models: async () => (await client.models.list()).data.map((model) => model.id),
  chat: wholeChat,
  completion: () => wholeCompletion(wanted.letter),
  stream,
  two: async () => ({
    texts: (await chat({ ...wanted.sampled, n: 2 })).choices.map((choice) => choice.message.content),
  }),
  stop: async () => {
    const { message, finish_reason } = (await chat({ stop: wanted.stop, max_tokens: 16 })).choices[0];
    return { text: message.content, finish_reason };
  },
  seeds,
  logprobs: async () =>
    (await chat({ logprobs: true, top_logprobs: 2 })).choices[0].logprobs.content.map((entry) => [
      entry.token,
      entry.logprob,
      entry.top_logprobs.length,
    ]),
  leave,
  unicode: emoji,
  large: () => wholeCompletion(wanted.large.character.repeat(wanted.large.count)),
  unknown_model: () => failure(() => chat({ model: "nobody" }), facts),
  bad_parameter: () => failure(() => chat({ temperature: wanted.below_zero }), facts),
  too_long: () => failure(() => complete("x".repeat(wanted.too_many_characters)), facts),
});
