// The messages of octavo/kv/v1 that the inspector reads and writes; the protos say what every field means.
import { REPEATED, bool, double, int, message, packed, raw, text, uint } from "./wire.js";

export const BlockState = { NULL: 1, FREE: 2, CACHED: 3, REFERENCED: 4, FENCED: 5 };
export const SequenceState = { RUNNING: 1, SWAPPED: 2 };
export const SequenceEventType = {
  ADMITTED: 1, READMITTED: 2, FORKED: 3, PREEMPTED: 4, RESUMED: 5, RELEASED: 6, REJECTED: 7,
};
export const PreemptionMode = { RECOMPUTE: 1, SWAP: 2 };
export const PreemptionReason = { POOL: 1, TENANT_LIMIT: 2, HOST_ROOM: 3 };

export const ResponseHeader = message({
  1: ["managerId", text], 2: ["pool", text], 3: ["epoch", uint], 4: ["step", uint],
});

const PoolSpec = message({
  1: ["pool", text], 2: ["workerId", text], 3: ["numBlocks", uint], 4: ["blockSize", uint], 5: ["blockBytes", uint],
  6: ["hostBlocks", uint], 7: ["window", uint],
});

const PoolStats = message({
  1: ["numBlocks", uint], 2: ["freeBlocks", uint], 3: ["cachedBlocks", uint], 4: ["referencedBlocks", uint],
  5: ["fencedBlocks", uint], 6: ["watermarkBlocks", uint], 7: ["hostBlocks", uint], 8: ["hostFreeBlocks", uint],
  9: ["runningSequences", uint], 10: ["swappedSequences", uint],
});

const PoolTotals = message({
  1: ["admittedSequences", uint], 4: ["lookupTokens", uint], 5: ["hitTokens", uint], 8: ["lateHitTokens", uint],
  9: ["grantedBlocks", uint], 10: ["evictedBlocks", uint], 11: ["forks", uint], 12: ["copiedBlocks", uint],
  13: ["recomputePreemptions", uint], 14: ["swapPreemptions", uint],
});

const PoolSummary = message({
  1: ["header", ResponseHeader], 2: ["spec", PoolSpec], 3: ["stats", PoolStats], 4: ["totals", PoolTotals],
  5: ["completedStep", uint], 6: ["connected", bool], 8: ["draining", bool],
});

const PrefixRoot = message({ 1: ["tenant", text], 3: ["adapter", text] });

export const SequenceSummary = message({
  1: ["seq", uint], 2: ["state", uint], 3: ["grantedTokens", uint], 4: ["committedTokens", uint],
  5: ["numBlocks", uint], 6: ["group", uint], 7: ["priority", int], 8: ["arrival", uint], 9: ["root", PrefixRoot],
});

export const Preempted = message({
  1: ["seq", uint], 2: ["mode", uint], 3: ["reason", uint], 4: ["requester", uint], 5: ["recomputeSeconds", double],
  6: ["swapSeconds", double],
});

const PreemptionRecord = message({ 1: ["step", uint], 2: ["preempted", Preempted] });

export const InspectPoolResponse = message({
  1: ["summary", PoolSummary], 2: ["sequences", SequenceSummary, REPEATED],
  3: ["recentPreemptions", PreemptionRecord, REPEATED],
});

export const BlockInfo = message({
  1: ["block", uint], 2: ["state", uint], 3: ["refCount", uint], 4: ["digest", raw], 5: ["fence", uint],
  6: ["owners", packed],
});

// Blocks stay bytes here: a pool reads thousands of them into its arrays without making an object of each.
const Snapshot = message({ 2: ["blocks", raw, REPEATED], 3: ["sequences", SequenceSummary, REPEATED], 4: ["last", bool] });
const BlocksChanged = message({ 1: ["blocks", raw, REPEATED] });

const TableChanged = message({ 1: ["seq", uint], 2: ["firstIndex", uint], 3: ["blocks", packed] });

const SequenceEvent = message({
  1: ["summary", SequenceSummary], 2: ["type", uint], 3: ["cachedTokens", uint], 4: ["preempted", Preempted],
});

const PoolDropped = message({ 1: ["reason", text] });

const eventFields = {
  1: ["header", ResponseHeader], 2: ["sequence", uint], 3: ["snapshot", Snapshot], 7: ["blocks", BlocksChanged],
  8: ["table", TableChanged], 9: ["sequenceEvent", SequenceEvent], 10: ["poolDropped", PoolDropped],
};
const WatchBatch = message({ 1: ["events", message(eventFields), REPEATED] });
export const WatchResponse = message({ ...eventFields, 11: ["batch", WatchBatch] });

export const RecordHeader = message({ 1: ["formatVersion", uint], 2: ["managerId", text], 3: ["program", text] });
const RecordedWatch = message({ 1: ["atMs", uint], 2: ["response", WatchResponse] });
const RecordedLook = message({ 1: ["atMs", uint], 2: ["response", InspectPoolResponse] });
export const Record = message({
  1: ["header", RecordHeader], 8: ["watched", RecordedWatch], 9: ["looked", RecordedLook],
});
