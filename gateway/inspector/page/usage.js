// What the pool's slots hold, in tokens. Every physical block counts once, however many tables name it.
//
//   positions of a table   0 ......... committed ......... granted ......... slots
//                          | held      | reserved          | internal        |
//
// The manager hears of block edges, not of tokens: what a sequence has decoded inside its last block is not committed
// yet, so it counts as internal here, half a block per decoding sequence on average.
import { FENCED } from "./pool.js";

export function usage(pool, sequences, blockSize) {
  const size = pool.numBlocks + 1;
  const held = new Uint32Array(size), granted = new Uint32Array(size), seen = new Uint8Array(size);
  const named = [];
  for (const { seq, committedTokens, grantedTokens } of sequences) {
    const table = pool.tables.get(seq) ?? [];
    for (let index = 0; index < table.length; index++) {
      const block = table[index];
      if (!block) continue;
      if (!seen[block]) named.push(block);
      seen[block] = 1;
      const within = (tokens) => Math.min(blockSize, Math.max(0, tokens - index * blockSize));
      held[block] = Math.max(held[block], pool.digested[block] ? blockSize : within(committedTokens));
      granted[block] = Math.max(granted[block], held[block], within(grantedTokens));
    }
  }
  const slots = pool.numBlocks * blockSize;
  let tokens = 0, reserved = 0, internal = 0;
  for (const block of named) {
    tokens += held[block];
    reserved += granted[block] - held[block];
    internal += blockSize - granted[block];
  }
  // Blocks in no table that nobody may be granted yet: all the external waste that paging knows.
  const external = pool.counts[FENCED] * blockSize;
  return { slots, tokens, reserved, internal, external };
}
