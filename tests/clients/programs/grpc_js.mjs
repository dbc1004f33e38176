// @grpc/grpc-js with @grpc/proto-loader on the .proto files: node grpc_js.mjs ADDRESS PROTOS
import fs from "node:fs";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";
import { answer } from "./answering.mjs";

const [address, protos] = process.argv.slice(2);
const wanted = JSON.parse(fs.readFileSync(new URL("requests.json", import.meta.url)));
const definition = protoLoader.loadSync("octavo/gateway/v1/gateway.proto", {
  includeDirs: [protos],
  keepCase: true,
  longs: Number,
  enums: String,
  defaults: true,
});
const { GatewayService } = grpc.loadPackageDefinition(definition).octavo.gateway.v1;
const client = new GatewayService(address, grpc.credentials.createInsecure());

async function read(call) {
  const responses = [];
  for await (const response of call) responses.push(response);
  return responses;
}

const reason = { FINISH_REASON_STOP: "stop", FINISH_REASON_LENGTH: "length" };
const usageOf = ({ usage }) => [usage.prompt_tokens, usage.completion_tokens];
const textOf = (responses, index = 0) =>
  responses.filter((response) => response.index === index).map((response) => response.text || response.content || "").join("");
const chat = (options, more) =>
  client.Chat({ messages: wanted.messages, options: { ...wanted.greedy, ...options }, ...more });
const generate = (prompt, options) => client.Generate({ prompt, options: { ...wanted.greedy, ...options } });

async function whole(call) {
  const responses = await read(call);
  return {
    text: textOf(responses),
    finish_reason: reason[responses.at(-1).finish_reason],
    usage: usageOf(responses.at(-1)),
  };
}

async function stream() {
  const responses = await read(chat());
  const last = responses.at(-1);
  const pieces = responses.map((response) => response.content).filter(Boolean);
  return { pieces, finish_reason: reason[last.finish_reason], usage: usageOf(last) };
}

async function two() {
  const responses = await read(chat({ ...wanted.sampled, n: 2 }));
  return { texts: [textOf(responses, 0), textOf(responses, 1)] };
}

async function seeds() {
  const texts = [];
  for (const options of [wanted.sampled, wanted.sampled, { ...wanted.sampled, seed: wanted.other_seed }])
    texts.push(textOf(await read(chat(options))));
  return texts;
}

async function logprobs() {
  const entries = (await read(chat({ logprobs: 2 }))).flatMap((response) => response.logprobs);
  return entries.map(({ token, top }) => [token.text, token.logprob, top.length]);
}

async function leave() {
  const pieces = [];
  const call = chat({ max_tokens: wanted.endless_tokens });
  try {
    for await (const response of call) {
      if (response.content) pieces.push(response.content);
      if (pieces.length === wanted.pieces_before_leaving) call.cancel();
    }
  } catch (error) {
    if (error.code !== grpc.status.CANCELLED) throw error;
  }
  return pieces.slice(0, wanted.pieces_before_leaving);
}

async function failed(call) {
  try {
    await read(call);
  } catch (error) {
    return { error: error.constructor.name, code: grpc.status[error.code], message: error.details };
  }
  throw new Error("the call did not fail");
}

await answer({
  models: () =>
    new Promise((resolve, reject) =>
      client.ListModels({}, (error, response) => (error ? reject(error) : resolve(response.models.map(({ id }) => id)))),
    ),
  chat: () => whole(chat()),
  completion: () => whole(generate(wanted.letter)),
  stream,
  two,
  stop: async () => {
    const { text, finish_reason } = await whole(chat({ stop: wanted.stop, max_tokens: 16 }));
    return { text, finish_reason };
  },
  seeds,
  logprobs,
  leave,
  unicode: async () =>
    (await read(generate(wanted.fox, { max_tokens: wanted.emoji_tokens }))).map(({ text }) => text).filter(Boolean),
  large: () => whole(generate(wanted.large.character.repeat(wanted.large.count))),
  unknown_model: () => failed(chat({}, { model: "nobody" })),
  bad_parameter: () => failed(chat({ temperature: wanted.below_zero })),
  too_long: () => failed(generate("x".repeat(wanted.too_many_characters))),
});
