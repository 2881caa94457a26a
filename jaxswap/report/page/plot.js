// Plot: what both zoomable figures share, the stretch of time they show and the cursor.
const end = Math.max(1e-12, ...["before", "after"].map((side) =>
  Math.max(data.curves[side]?.step_s ?? 0, data.streams[side]?.step_s ?? 0)));
const view = { from: 0, to: end };
let cursor = null;
const plots = [];

class Plot {
  constructor(box, height, draw) {
    this.box = box; this.height = height; this.draw = draw;
    this.svg = box.appendChild(element("svg", { role: "img", "aria-label": box.dataset.label }));
    box.tabIndex = 0;
    let from = null;
    box.addEventListener("pointerdown", (e) => {
      if (e.pointerType === "mouse" && e.button === 0) from = this.time(e);
      point(this.time(e));
    });
    box.addEventListener("pointermove", (e) => { point(this.time(e)); this.select(from, cursor); });
    window.addEventListener("pointerup", (e) => {
      if (from === null) return;
      const to = this.time(e), [low, high] = [Math.min(from, to), Math.max(from, to)];
      from = null;
      if (this.x(high) - this.x(low) > 6) zoom(low, high); else this.select(null, null);
    });
    box.addEventListener("dblclick", () => zoom(0, end));
    box.addEventListener("keydown", (e) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
      if (by) { e.preventDefault(); point((cursor ?? view.from) + by * (view.to - view.from) / 100); }
    });
    plots.push(this);
  }
  get left() { return this.width < 560 ? 62 : 104; }
  get right() { return this.width - 10; }
  x(t) { return this.left + (this.right - this.left) * (t - view.from) / (view.to - view.from); }
  time(e) {
    const at = (e.clientX - this.svg.getBoundingClientRect().left - this.left) / (this.right - this.left);
    return view.from + Math.min(1, Math.max(0, at)) * (view.to - view.from);
  }
  select(from, to) {
    const show = from !== null && to !== null;
    const [a, b] = show ? [this.x(from), this.x(to)].sort((p, q) => p - q) : [0, 0];
    this.selection.setAttribute("x", a); this.selection.setAttribute("width", Math.max(0, b - a));
  }
  render() {
    this.width = this.box.clientWidth || 960;
    this.svg.replaceChildren();
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    const bottom = this.height - 26;
    for (const t of ticks(view.from, view.to, this.width < 560 ? 4 : 7)) {
      const x = this.x(t);
      this.add("line", { class: "grid", x1: x, x2: x, y1: 10, y2: bottom });
      this.add("text", { x, y: this.height - 8, "text-anchor": "middle" }, formatSeconds(Number(t.toPrecision(9))));
    }
    this.draw(this, bottom);
    this.selection = this.add("rect", { class: "select", x: 0, y: 10, width: 0, height: bottom - 10 });
    this.line = this.add("line", { class: "cursor", y1: 10, y2: bottom, visibility: "hidden" });
  }
  add(name, attributes, text) { return this.svg.appendChild(element(name, attributes, text)); }
  follow(t) {
    const inside = t !== null && t >= view.from && t <= view.to;
    this.line.setAttribute("visibility", inside ? "visible" : "hidden");
    if (inside) { this.line.setAttribute("x1", this.x(t)); this.line.setAttribute("x2", this.x(t)); }
    this.onfollow?.(inside ? t : null);
  }
}
function zoom(from, to) {
  const least = end / 1e5, middle = (from + to) / 2;
  if (to - from < least) [from, to] = [middle - least / 2, middle + least / 2];
  view.from = Math.max(0, from); view.to = Math.min(end, to);
  for (const plot of plots) plot.render();
  point(cursor);
}
function point(t) {
  cursor = t;
  for (const plot of plots) plot.follow(t);
  readMemory(t); readStreams(t);
}
/** The last position whose start is not after `t`. */
function findLast(starts, t) {
  let low = 0, high = starts.length;
  while (low < high) { const middle = (low + high) >> 1; if (starts[middle] <= t) low = middle + 1; else high = middle; }
  return Math.max(0, low - 1);
}
