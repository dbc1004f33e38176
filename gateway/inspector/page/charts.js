// Timelines: small pictures over the last minutes, each with its present values in words. A click shows that moment.
import { CACHED, FENCED, REFERENCED, SHARED } from "./pool.js";

const RATE_WINDOW_MS = 15_000;

const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0)} %`;

// Each chart: what it shows of the samples, stacked areas or lines or bars, in shares from 0 to 1 or in counts.
const CHARTS = [
  {
    title: "use",
    stacked: [
      { name: "referenced", tone: REFERENCED, of: ({ counts, blocks }) => counts[REFERENCED] / blocks },
      { name: "shared", tone: SHARED, of: ({ counts, blocks }) => counts[SHARED] / blocks },
      { name: "cached", tone: CACHED, of: ({ counts, blocks }) => counts[CACHED] / blocks },
      { name: "fenced", tone: FENCED, of: ({ counts, blocks }) => counts[FENCED] / blocks },
    ],
  },
  {
    title: "waste",
    stacked: [
      { name: "internal", tone: CACHED, of: ({ internal, slots }) => internal / slots },
      { name: "reserved", tone: SHARED, of: ({ reserved, slots }) => reserved / slots },
      { name: "external", tone: FENCED, of: ({ external, slots }) => external / slots },
    ],
  },
  {
    title: "hit rate",
    lines: [
      { name: "last 15 s", tone: REFERENCED, of: ({ recent }) => recent },
      { name: "since attach", tone: CACHED, dash: [4, 3], of: ({ overall }) => overall },
    ],
  },
  {
    title: "preemptions",
    bars: [
      { name: "recompute", tone: SHARED, of: ({ recomputed }) => recomputed },
      { name: "swap", tone: REFERENCED, hollow: true, of: ({ swapped }) => swapped },
    ],
  },
];

export class Charts {
  // seek(ms) is called when somebody points at a moment.
  constructor(home, palette, seek) {
    this.palette = palette;
    this.samples = [];
    this.stale = true;  // something to draw has changed, other than which moment is shown
    this.shown = null;
    this.charts = CHARTS.map((chart) => this.#build(home, chart, seek));
  }

  #build(home, chart, seek) {
    const figure = document.createElement("figure"), caption = document.createElement("figcaption");
    const canvas = document.createElement("canvas");
    canvas.setAttribute("role", "img");
    const rows = chart.stacked ?? chart.lines ?? chart.bars;
    const words = rows.map(() => document.createElement("span"));
    caption.append(Object.assign(document.createElement("b"), { textContent: chart.title }), ...words);
    figure.append(caption, canvas);
    home.append(figure);
    canvas.addEventListener("click", (event) => {
      if (this.samples.length > 1) seek(this.#timeAt(event.offsetX / canvas.clientWidth));
    });
    return { ...chart, rows, words, canvas };
  }

  clear() {
    this.samples = [];
    this.stale = true;
  }

  // Sizes are read here alone: reading them makes the browser lay the page out.
  layout() {
    for (const chart of this.charts) {
      const { canvas } = chart;
      chart.size = { width: canvas.clientWidth, height: canvas.clientHeight };
      canvas.width = Math.round(chart.size.width * devicePixelRatio);
      canvas.height = Math.round(chart.size.height * devicePixelRatio);
    }
    this.stale = true;
  }

  // A sample of the model; rates are those of the stretch before it.
  add(sample, keptMs) {
    const before = this.samples.at(-1), blocks = sample.counts.reduce((sum, count) => sum + count, 0) - 1;
    if (before && sample.at <= before.at) return;
    const since = this.samples.find(({ at }) => at >= sample.at - RATE_WINDOW_MS) ?? sample;
    const looked = sample.lookupTokens - since.lookupTokens;
    this.samples.push({
      ...sample,
      blocks,
      recent: looked > 0 ? (sample.hitTokens - since.hitTokens) / looked : null,
      overall: sample.lookupTokens ? sample.hitTokens / sample.lookupTokens : null,
      recomputed: before ? Math.max(0, sample.recompute - before.recompute) : 0,
      swapped: before ? Math.max(0, sample.swap - before.swap) : 0,
    });
    while (this.samples[0].at < sample.at - keptMs) this.samples.shift();
    this.stale = true;
  }

  #timeAt(share) {
    const first = this.samples[0].at, last = this.samples.at(-1).at;
    return first + share * (last - first);
  }

  // `shown` is the moment that the rest of the page shows, null for the newest.
  draw(shown) {
    if (!this.stale && shown === this.shown) return;
    this.stale = false;
    this.shown = shown;
    for (const chart of this.charts) this.#draw(chart, shown);
  }

  #draw(chart, shown) {
    const { canvas, size } = chart, context = canvas.getContext("2d");
    if (!size) return;
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    context.clearRect(0, 0, size.width, size.height);
    context.lineWidth = 1;
    context.strokeStyle = this.palette.line;
    context.strokeRect(0.5, 0.5, size.width - 1, size.height - 1);
    const present = shown === null ? this.samples.at(-1) : this.samples.findLast(({ at }) => at <= shown) ?? this.samples[0];
    this.#describe(chart, present);
    if (this.samples.length < 2) return;
    const first = this.samples[0].at, span = this.samples.at(-1).at - first;
    const x = (at) => ((at - first) / span) * size.width;
    if (chart.stacked) this.#areas(context, chart.stacked, x, size);
    if (chart.lines) this.#lines(context, chart.lines, x, size);
    if (chart.bars) this.#bars(context, chart.bars, x, size);
    if (shown !== null) {
      context.fillStyle = this.palette.accent;
      context.fillRect(x(Math.max(first, Math.min(shown, first + span))) - 1, 0, 2, size.height);
    }
  }

  #describe({ title, rows, words, bars, canvas }, present) {
    const said = (row) => {
      if (!present) return "-";
      if (bars) return String(this.samples.reduce((sum, sample) => sum + row.of(sample), 0));
      const value = row.of(present);
      return value === null ? "-" : percent(value);
    };
    rows.forEach((row, index) => {
      const text = `${row.name} ${said(row)}`, style = row.dash || row.hollow ? "dashed" : "solid";
      if (words[index].textContent !== text) words[index].textContent = text;
      words[index].style.borderBottom = `3px ${style} ${this.palette.tones[row.tone]}`;
    });
    canvas.setAttribute("aria-label", `${title} over time: ${words.map(({ textContent }) => textContent).join(", ")}`);
  }

  #areas(context, rows, x, { height }) {
    const { samples } = this;
    // The axis ends at what is reached, a tenth at least: waste of a percent has to be seen.
    const sums = samples.map((sample) => rows.reduce((sum, row) => sum + row.of(sample), 0));
    const most = Math.min(1, Math.max(0.1, 1.15 * Math.max(...sums)));
    let below = samples.map(() => 0);
    for (const row of rows) {
      const above = samples.map((sample, index) => below[index] + row.of(sample));
      context.fillStyle = this.palette.tones[row.tone];
      context.beginPath();
      samples.forEach((sample, index) => context.lineTo(x(sample.at), height * (1 - above[index] / most)));
      for (let index = samples.length - 1; index >= 0; index--) {
        context.lineTo(x(samples[index].at), height * (1 - below[index] / most));
      }
      context.fill();
      below = above;
    }
    this.#axis(context, percent(most));
  }

  #lines(context, rows, x, { height }) {
    for (const row of rows) {
      context.strokeStyle = this.palette.tones[row.tone];
      context.lineWidth = 2;
      context.setLineDash(row.dash ?? []);
      context.beginPath();
      let drawing = false;
      for (const sample of this.samples) {
        const value = row.of(sample);
        if (value === null) drawing = false;
        else if (drawing) context.lineTo(x(sample.at), 2 + (height - 4) * (1 - value));
        else context.moveTo(x(sample.at), 2 + (height - 4) * (1 - value));
        drawing ||= value !== null;
      }
      context.stroke();
      context.setLineDash([]);
    }
    this.#axis(context, "100 %");
  }

  #bars(context, rows, x, { height }) {
    const most = Math.max(1, ...this.samples.map((sample) => rows.reduce((sum, row) => sum + row.of(sample), 0)));
    for (const sample of this.samples) {
      let below = height;
      for (const row of rows) {
        const tall = (height - 12) * (row.of(sample) / most);
        if (!tall) continue;
        context.fillStyle = context.strokeStyle = this.palette.tones[row.tone];
        context.lineWidth = 1.5;
        if (row.hollow) context.strokeRect(x(sample.at) - 2, below - tall + 1, 4, tall - 1);
        else context.fillRect(x(sample.at) - 2.5, below - tall, 5, tall);
        below -= tall;
      }
    }
    this.#axis(context, String(most));
  }

  #axis(context, label) {
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "top";
    context.textAlign = "left";
    context.lineWidth = 3;
    context.strokeStyle = this.palette.ground;
    context.fillStyle = this.palette.ink;
    context.strokeText(label, 4, 3);
    context.fillText(label, 4, 3);
  }
}
