// What the page says of blocks, requests and preemptions, in words. Pure.
import { PreemptionMode, PreemptionReason, SequenceState } from "./messages.js";
import { NAMES } from "./palette.js";
import { SHARED } from "./pool.js";

const OWNERS_NAMED = 12;

const REASONS = {
  [PreemptionReason.POOL]: "the pool had no block left for it",
  [PreemptionReason.TENANT_LIMIT]: "its tenant had reached its hard limit of blocks",
  [PreemptionReason.HOST_ROOM]: "the host tier had no room for another one that was parked",
};

export function counted(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

export function listed(items) {
  const named = items.slice(0, OWNERS_NAMED).join(", ");
  return items.length > OWNERS_NAMED ? `${named} and ${items.length - OWNERS_NAMED} more` : named;
}

export function lasting(ms) {
  if (ms < 1_000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 60_000) return `${(ms / 1_000).toFixed(1)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.floor((ms % 60_000) / 1_000)} s`;
}

export function kindOf(pool, block) {
  const name = NAMES[pool.kind[block]];
  return pool.kind[block] === SHARED ? `shared by ${pool.refs[block]} table entries` : name;
}

// A block in a line, for people who hear the page.
export function blockLine(pool, block) {
  const owners = pool.owners(block);
  return `block ${block}, ${kindOf(pool, block)}${owners.length ? `, of ${counted(owners.length, "request")}: ${listed(owners)}` : ""}`;
}

// Everything known of a block, as [term, description].
export function blockRows(pool, block, now, fence) {
  const owners = pool.owners(block), since = pool.since[block];
  const rows = [
    ["block", String(block)],
    ["state", kindOf(pool, block)],
    ["references", String(pool.refs[block])],
    ["requests", listed(owners) || "none"],
    ["for", since ? lasting(now - since) : "since before this page looked"],
  ];
  if (fence) rows.push(["fence", `not granted before step ${fence} has completed`]);
  rows.push(["digest", pool.digest(block) || "none: not full yet, or nobody's"]);
  return rows;
}

// Seconds as the manager told them: infinity where the host tier has no room, 0 where the worker has measured nothing.
function priced(seconds) {
  if (!Number.isFinite(seconds)) return "impossible, no room in the host tier";
  if (!seconds) return "not measured yet";
  return seconds < 0.01 ? `${(1_000 * seconds).toFixed(2)} ms` : `${(1_000 * seconds).toFixed(0)} ms`;
}

export function modeOf(preempted) {
  return preempted.mode === PreemptionMode.SWAP ? "swapped out" : "forgotten, to be computed again";
}

// A preemption explained: who, for whom, why, and why in this way.
export function explain({ seq, requester, reason, recomputeSeconds, swapSeconds, mode }) {
  const who = requester === seq ? `${seq} gave way itself` : `${seq} gave way to ${requester}`;
  const because = REASONS[reason] ?? "of a reason this page does not know";
  return {
    who,
    because,
    prices: `computing again: ${priced(recomputeSeconds)}; swapping out and in: ${priced(swapSeconds)}`,
    outcome: modeOf({ mode }),
  };
}

export function pickedLine(pool, seq) {
  const summary = pool.sequences.get(seq), table = pool.tables.get(seq) ?? [];
  if (!summary) return `request ${seq} is gone`;
  if (summary.state === SequenceState.SWAPPED) return `request ${seq} is parked in the host tier: ${counted(summary.numBlocks, "block")}`;
  const prefix = pool.sharedPrefix(seq), others = new Set();
  for (const block of table.slice(0, prefix)) for (const owner of pool.owners(block)) if (owner !== seq) others.add(owner);
  const shared = prefix ? `, the first ${prefix} shared with ${listed([...others].sort((a, b) => a - b))}` : "";
  return `request ${seq}: ${counted(table.length, "block")}${shared}`;
}

// A moment of the log in words; "" for what is not told.
export function momentLine({ what, seq, source, target, preempted, blocks, cachedTokens, tokens }) {
  switch (what) {
    case "admitted":
      return `${seq} admitted with ${counted(tokens, "token")}, ${cachedTokens ? `${cachedTokens} of them found in the cache` : "none in the cache"}`;
    case "forked": return `${seq} forked: it names its parent's blocks`;
    case "copy": return `${seq} writes block ${source}, which others rely on: copied to ${target}`;
    case "preempted":
      return `${seq} ${modeOf(preempted)}, ${counted(blocks.length, "block")}, for ${preempted.requester}`;
    case "resumed": return `${seq} is back from the host tier`;
    case "released": return `${seq} ended`;
    default: return "";
  }
}
