// Hears a record file as the page does: node fold_record.mjs PAGE_FOLDER RECORD EXPORT_TO
//
// Prints what the model then knows as JSON, and writes what the page would export.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder, source, target] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(`${folder}/${name}.js`));
const { Model } = await load("model");
const { History } = await load("history");
const { Record } = await load("messages");
const { recordsOf } = await load("records");
const words = await load("words");

const model = new Model(), history = new History(), log = [], samples = [];
for (const bytes of recordsOf(new Uint8Array(readFileSync(source)))) {
  const heard = model.hear(Record.decode(bytes));
  history.add(bytes, model, heard);
  for (const moment of model.pool?.takeMoments() ?? []) log.push(words.momentLine(moment));
  if (heard === "look") samples.push(model.sample());
}

const known = ({ pool, step, preemptions }) => ({
  step,
  kinds: Array.from(pool.kind),
  refs: Array.from(pool.refs),
  fences: Array.from(pool.fence),
  counts: Array.from(pool.counts),
  digests: Array.from(pool.kind, (_, block) => pool.digest(block)),
  owners: Array.from(pool.kind, (_, block) => pool.owners(block)),
  tables: Object.fromEntries(pool.tables),
  prefixes: Object.fromEntries([...pool.tables.keys()].map((seq) => [seq, pool.sharedPrefix(seq)])),
  sequences: [...pool.sequences.values()].map(({ seq, state, priority, arrival, root }) => ({ seq, state, priority, arrival, root })),
  parked: [...pool.parked.keys()],
  preemptions: preemptions.map(({ step: at, preempted }) => ({ at, ...words.explain(preempted) })),
});
writeFileSync(target, history.export());
const again = history.at(history.last);
console.log(JSON.stringify({ ...known(model), log, samples, again: known(again), renewed: model.renewed }));
