// The stream of a pool from the gateway, read again and again until somebody closes it.
import { Cutter } from "./records.js";

const FIRST_WAIT_MS = 500, LONGEST_WAIT_MS = 8_000;

// An answer that is no stream: what went wrong, and whether a key would help.
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }

  get needsKey() {
    return this.status === 401 || this.status === 403;
  }
}

// Asks the inspector's own address, with the operator's key where there is one.
export async function ask(path, key, signal) {
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  let response;
  try {
    response = await fetch(new URL(path, import.meta.url), { headers, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "the gateway does not answer");
  }
  if (response.ok) return response;
  const said = await response.json().catch(() => null);
  throw new Refused(response.status, said?.error?.message ?? `the gateway answers ${response.status}`);
}

export class Stream {
  // hear(bytes) is called per record, opened() per connection, trouble(message) when one broke; refused(error) when only
  // a key helps, after which nothing more comes.
  constructor(path, key, { hear, opened, trouble, refused }) {
    this.listener = { hear, opened, trouble, refused };
    this.abort = new AbortController();
    this.#run(path, key);
  }

  close() {
    this.abort.abort();
  }

  async #run(path, key) {
    let wait = FIRST_WAIT_MS;
    for (;;) {
      try {
        const response = await ask(path, key, this.abort.signal);
        this.listener.opened();
        wait = FIRST_WAIT_MS;
        const reader = response.body.getReader(), cutter = new Cutter();
        for (let part = await reader.read(); !part.done; part = await reader.read()) {
          for (const bytes of cutter.cut(part.value)) this.listener.hear(bytes);
        }
        this.listener.trouble("the stream ended");
      } catch (error) {
        if (this.abort.signal.aborted) return;
        if (error.needsKey) return this.listener.refused(error);
        this.listener.trouble(error.message);
      }
      await new Promise((resolve) => setTimeout(resolve, wait));
      if (this.abort.signal.aborted) return;
      wait = Math.min(LONGEST_WAIT_MS, 2 * wait);
    }
  }
}
