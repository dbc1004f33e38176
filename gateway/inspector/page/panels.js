// The lists beside the map. They are written anew a few times a second at most, and only where words have changed.
import { SequenceState } from "./messages.js";
import { LEGEND, NAMES, drawCell } from "./palette.js";
import { SHARED } from "./pool.js";
import { blockRows, explain, momentLine, pickedLine } from "./words.js";

const MOST_ROWS = 200, MOST_LOGGED = 80;
const LEGEND_CELL = 16;

const byId = (id) => document.getElementById(id);

function element(tag, text = "", fields = {}) {
  return Object.assign(document.createElement(tag), { textContent: text, ...fields });
}

// Write only what differs, so that what is selected or read aloud stays.
function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export class Panels {
  // pick(seq) is called when somebody chooses a request.
  constructor(palette, pick) {
    this.palette = palette;
    this.rows = new Map();
    this.logged = [];
    this.pick = pick;
    this.#buildLegend();
  }

  #buildLegend() {
    this.legend = LEGEND.map((kind) => {
      const item = element("li"), picture = element("canvas"), words = element("span");
      item.append(picture, words);
      byId("legend").append(item);
      return { kind, picture, words };
    });
    this.recolour();
  }

  recolour() {
    this.hostStale = true;
    const size = LEGEND_CELL * devicePixelRatio;
    for (const { kind, picture } of this.legend) {
      picture.width = picture.height = size;
      drawCell(picture.getContext("2d"), this.palette, 0, 0, size, kind, kind === SHARED ? 2 : 1);
    }
  }

  show(model, picked, now) {
    const { pool } = model;
    for (const { kind, words } of this.legend) write(words, `${NAMES[kind]} ${pool.counts[kind].toLocaleString("en")}`);
    this.#showRequests(model, picked);
    write(byId("picked"), picked === null ? "pick one to see its table" : pickedLine(pool, picked));
    this.#showPreemptions(model);
    this.#showHost(model);
  }

  showBlock(model, block, tokens) {
    const home = byId("block");
    if (!model.pool || block < 0) {
      home.replaceChildren(element("dt", "point at a block"), element("dd"));
      return;
    }
    // A fence means nothing once the step it names has completed, and no event tells when that is.
    const fence = model.pool.fence[block] > (model.look?.summary.completedStep ?? 0) ? model.pool.fence[block] : 0;
    const rows = blockRows(model.pool, block, model.at, fence);
    if (tokens) rows.push(["tokens", tokens]);
    home.replaceChildren(...rows.flatMap(([term, words]) => [
      element("dt", term), element("dd", words, { className: term === "digest" ? "digest" : "" }),
    ]));
  }

  log(moments) {
    const told = moments.map((moment) => [moment.step, momentLine(moment)]).filter(([, words]) => words);
    if (!told.length) return;
    const items = told.slice(-MOST_LOGGED).map(([step, words]) => {
      const item = element("li");
      item.append(element("span", `step ${step} `, { className: "when" }), words);
      return item;
    });
    const home = byId("log");
    home.prepend(...items.reverse());
    while (home.childElementCount > MOST_LOGGED) home.lastElementChild.remove();
  }

  #showRequests({ pool }, picked) {
    const home = byId("requests");
    const listed = [...pool.sequences.values()].sort((a, b) => a.seq - b.seq).slice(-MOST_ROWS);
    const wanted = new Set(listed.map(({ seq }) => seq));
    for (const [seq, row] of this.rows) {
      if (wanted.has(seq)) continue;
      row.remove();
      this.rows.delete(seq);
    }
    for (const summary of listed) {
      const { seq } = summary, table = pool.tables.get(seq) ?? [];
      const row = this.rows.get(seq) ?? this.#addRow(home, seq);
      const shared = table.reduce((sum, block) => sum + (pool.kind[block] === SHARED ? 1 : 0), 0);
      const words = [summary.state === SequenceState.SWAPPED ? "parked" : "running", summary.grantedTokens,
        table.length || summary.numBlocks, shared, summary.group, summary.root?.tenant ?? ""];
      words.forEach((word, index) => write(row.cells[index + 1], String(word)));
      row.classList.toggle("picked", seq === picked);
      row.cells[0].firstElementChild.ariaPressed = String(seq === picked);
    }
  }

  #addRow(home, seq) {
    const row = element("tr"), button = element("button", String(seq));
    button.setAttribute("aria-label", `pick request ${seq}`);
    button.addEventListener("click", () => this.pick(seq));
    row.append(element("td"), ...Array.from({ length: 6 }, () => element("td")));
    row.cells[0].append(button);
    home.append(row);
    this.rows.set(seq, row);
    return row;
  }

  #showPreemptions({ preemptions }) {
    const newest = preemptions.at(-1), home = byId("preemptions");
    const mark = newest ? `${newest.step}/${newest.preempted.seq}/${preemptions.length}` : "none";
    if (home.dataset.mark === mark) return;
    home.dataset.mark = mark;
    if (!newest) home.replaceChildren(element("li", "nobody had to yet"));
    else home.replaceChildren(...preemptions.slice().reverse().map(({ step, preempted }) => preemptionItem(step, preempted)));
  }

  #showHost({ look, pool }) {
    const { hostBlocks, hostFreeBlocks } = look.summary.stats;
    byId("host").hidden = !hostBlocks;
    if (!hostBlocks) return;
    const used = hostBlocks - hostFreeBlocks;
    write(byId("host-label"), `host tier: ${used.toLocaleString("en")} of ${hostBlocks.toLocaleString("en")} blocks swapped, ${pool.parked.size} parked`);
    if (this.hostShown === used / hostBlocks && !this.hostStale) return;
    this.hostShown = used / hostBlocks;
    this.hostStale = false;
    const canvas = byId("host-map"), context = canvas.getContext("2d");
    canvas.width = Math.round(canvas.clientWidth * devicePixelRatio);
    canvas.height = Math.round(canvas.clientHeight * devicePixelRatio);
    context.fillStyle = this.palette.tones[0];
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.fillStyle = this.palette.swapped;
    // A single block of many still is a line.
    if (used) context.fillRect(0, 0, Math.max(2, (canvas.width * used) / hostBlocks), canvas.height);
  }
}

function preemptionItem(step, preempted) {
  const { who, because, prices, outcome } = explain(preempted), item = element("li");
  item.append(element("span", `step ${step} `, { className: "when" }), element("b", who), `: ${because}. ${prices}. `,
    element("b", outcome), ".");
  return item;
}
