// Keys, pointer, buttons and dialogs.
import { STRIP } from "./overlay.js";

const ZOOM = 1.3, LONG_STEP_MS = 10_000, PAN = 60, DRAG_PIXELS = 4;
const THEMES = ["", "light", "dark"];

const byId = (id) => document.getElementById(id);

// Before any colour is read.
export function restoreTheme() {
  document.documentElement.dataset.theme = localStorage.getItem("octavo.theme") ?? "";
}

export class Controls {
  constructor(inspector) {
    this.inspector = inspector;
    this.#listenToPointer(byId("canvases"));
    this.#listenToButtons();
    addEventListener("keydown", (event) => this.#keyDown(event));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => inspector.recolour());
  }

  // --- what is shown of the state

  showStatus(trouble) {
    const { shown, live } = this.inspector, status = byId("status"), { pool, look } = shown;
    status.classList.toggle("trouble", trouble !== "" && live);
    const notice = byId("notice");
    notice.hidden = pool !== null;
    notice.textContent = trouble || "waiting for the pool";
    if (!pool || !look) {
      status.textContent = trouble;
      return;
    }
    const { spec, header, connected, draining } = look.summary;
    const words = [`${pool.numBlocks.toLocaleString("en")} blocks of ${spec.blockSize} tokens`, `epoch ${header.epoch}`,
      `step ${Math.max(shown.step, header.step).toLocaleString("en")}`];
    if (!connected) words.push("worker not connected");
    if (draining) words.push("draining");
    if (trouble && live) words.push(trouble);
    status.textContent = words.join(", ");
  }

  showMoment() {
    const { history, shown, live } = this.inspector, time = byId("time");
    const last = Math.max(history.first, history.last);
    time.min = history.first;
    time.max = last;
    time.value = live ? last : shown.at;
    const ago = (last - shown.at) / 1_000;
    byId("clock").textContent = live ? "live" : `${ago.toFixed(1)} s ago`;
    time.setAttribute("aria-valuetext", byId("clock").textContent);
    byId("live").ariaPressed = String(live);
    byId("pause").ariaPressed = String(!live);
  }

  showPools(places) {
    const select = byId("pools"), wanted = new URLSearchParams(location.hash.slice(1));
    const named = ({ manager, pool }) => `${pool} at ${manager}`;
    const usable = places.filter(({ pool }) => pool);
    select.replaceChildren(...usable.map((place, index) => new Option(named(place), index)));
    if (!usable.length) {
      const troubles = places.map(({ manager, trouble }) => `${manager}: ${trouble}`);
      this.inspector.trouble = troubles.join("; ") || "no KV manager is named: --inspect-managers host:port";
      this.showStatus(this.inspector.trouble);
      setTimeout(() => this.inspector.list(), 3_000);
      return;
    }
    const chosen = usable.findIndex(({ manager, pool }) => pool === wanted.get("pool") && manager === wanted.get("manager"));
    select.value = Math.max(0, chosen);
    select.onchange = () => {
      const { manager, pool } = usable[select.value];
      location.hash = new URLSearchParams({ manager, pool });
      this.inspector.watch({ manager, pool });
    };
    this.inspector.watch(usable[select.value]);
  }

  askForKey(why) {
    const dialog = byId("sign-in");
    byId("sign-in-why").textContent = why;
    if (dialog.open) return;
    dialog.showModal();
    dialog.onclose = () => {
      // Kept for this tab alone, and gone with it.
      sessionStorage.setItem("octavo.key", byId("key").value);
      byId("key").value = "";
      this.inspector.list();
    };
  }

  // --- pointer

  #listenToPointer(home) {
    let drag = null;
    const at = (event) => {
      const { left, top } = home.getBoundingClientRect();
      return [event.clientX - left, event.clientY - top];
    };
    home.addEventListener("pointermove", (event) => {
      const { map, overlay, shown } = this.inspector, [x, y] = at(event);
      if (drag) {
        if (Math.hypot(x - drag.fromX, y - drag.fromY) > DRAG_PIXELS) drag.moved = true;
        if (drag.moved) map.pan(drag.x - x, drag.y - y);
        [drag.x, drag.y] = [x, y];
        return;
      }
      const entry = y < STRIP ? overlay.entryAt(x, y) : -1;
      if (entry !== overlay.entry) {
        overlay.entry = entry;
        this.inspector.overlayStale = true;
      }
      this.inspector.point(entry >= 0 ? overlay.table[entry] : shown.pool ? map.blockAt(x, y - STRIP) : -1);
    });
    home.addEventListener("pointerdown", (event) => {
      const [x, y] = at(event);
      drag = { x, y, fromX: x, fromY: y, moved: false };
      home.setPointerCapture(event.pointerId);
    });
    home.addEventListener("pointerup", (event) => {
      const [x, y] = at(event);
      if (drag && !drag.moved) this.inspector.pickAt(this.inspector.map.blockAt(x, y - STRIP));
      drag = null;
    });
    home.addEventListener("pointercancel", () => (drag = null));
    home.addEventListener("wheel", (event) => {
      event.preventDefault();
      const { map, overlay } = this.inspector, [x, y] = at(event);
      if (y < STRIP) {
        overlay.scroll(Math.sign(event.deltaY) * 4);
        this.inspector.overlayStale = true;
      } else map.zoom(event.deltaY < 0 ? ZOOM : 1 / ZOOM, x, y - STRIP);
    }, { passive: false });
  }

  // --- buttons

  #listenToButtons() {
    const { inspector } = this;
    const click = (id, act) => byId(id).addEventListener("click", act);
    click("pause", () => inspector.pause());
    click("live", () => inspector.goLive());
    click("back", () => inspector.step(false));
    click("forth", () => inspector.step(true));
    click("export", () => this.#export());
    click("open", () => byId("file").click());
    click("theme", () => this.#nextTheme());
    click("help", () => byId("keys").showModal());
    byId("time").addEventListener("input", (event) => inspector.seek(Number(event.target.value)));
    byId("file").addEventListener("change", async (event) => {
      const [file] = event.target.files;
      if (!file) return;
      try {
        inspector.open(new Uint8Array(await file.arrayBuffer()));
      } catch (error) {
        inspector.trouble = `${file.name}: ${error.message}`;
        this.showStatus(inspector.trouble);
      }
      event.target.value = "";
    });
  }

  #export() {
    const bytes = this.inspector.export();
    if (!bytes) return;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([bytes], { type: "application/octet-stream" }));
    link.download = `octavo-${new Date().toISOString().slice(0, 19).replaceAll(":", "")}.record`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1_000);
  }

  #nextTheme() {
    const { dataset } = document.documentElement;
    dataset.theme = THEMES[(THEMES.indexOf(dataset.theme) + 1) % THEMES.length];
    localStorage.setItem("octavo.theme", dataset.theme);
    this.inspector.recolour();
  }

  // --- keys

  #keyDown(event) {
    const typing = event.target.matches("input:not([type=range]), select, textarea");
    if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const onMap = event.target === byId("canvases");
    const act = (onMap && this.#mapKeys(event)) || this.#keys(event);
    if (!act) return;
    event.preventDefault();
    act();
  }

  #keys({ key, target }) {
    const { inspector } = this, { map } = inspector;
    // Space presses the button that has the focus.
    if (key === " ") return target.matches("button") ? null : () => inspector.pause();
    return {
      ",": () => inspector.step(false),
      ".": () => inspector.step(true),
      "<": () => inspector.seek(inspector.shown.at - LONG_STEP_MS),
      ">": () => inspector.seek(inspector.shown.at + LONG_STEP_MS),
      l: () => inspector.goLive(),
      n: () => inspector.pickNext(1),
      p: () => inspector.pickNext(-1),
      Escape: () => inspector.pick(null),
      "+": () => map.zoom(ZOOM),
      "=": () => map.zoom(ZOOM),
      "-": () => map.zoom(1 / ZOOM),
      0: () => map.showAll(),
      e: () => this.#export(),
      o: () => byId("file").click(),
      t: () => this.#nextTheme(),
      "?": () => byId("keys").showModal(),
    }[key];
  }

  #mapKeys({ key, shiftKey }) {
    const { inspector } = this, { map, overlay } = inspector;
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (key in moves) {
      const [x, y] = moves[key];
      if (shiftKey) return () => map.pan(x * PAN, y * PAN);
      return () => inspector.moveCursor(overlay.cursor < 0 ? 0 : overlay.cursor + x + y * map.columns);
    }
    if (key === "Enter") return () => inspector.pickAt(overlay.cursor);
    return null;
  }
}
