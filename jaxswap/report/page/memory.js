// Memory: the two curves, and what is on the device at the cursor.
const NAMES = { before: "as written", after: "planned" };
const curves = Object.entries(data.curves).filter(([, curve]) => curve && curve.bytes.length);
const most = Math.max(data.budget_bytes, ...curves.map(([, c]) => c.bytes.reduce((a, b) => Math.max(a, b), 0))) * 1.06;

function drawMemory(plot, bottom) {
  const y = (bytes) => bottom - (bottom - 14) * bytes / most;
  plot.y = y;
  const unit = UNITS.find(([, size]) => most >= size) ?? ["B", 1];
  for (const t of ticks(0, most / unit[1], 5)) {
    plot.add("line", { class: "grid", x1: plot.left, x2: plot.right, y1: y(t * unit[1]), y2: y(t * unit[1]) });
    plot.add("text", { x: plot.left - 8, y: y(t * unit[1]) + 4, "text-anchor": "end" }, Number(t.toPrecision(4)) + " " + unit[0]);
  }
  for (const [side, curve] of curves) {
    const line = stepPath(plot, curve, y);
    if (!line) continue;
    plot.add("path", { class: side + "-area", d: `${line.d}V${bottom}H${line.start}Z` });
    plot.add("path", { class: side + "-line", d: line.d, id: "line-" + side });
  }
  const at = y(data.budget_bytes);
  plot.add("line", { class: "budget", x1: plot.left, x2: plot.right, y1: at, y2: at });
  plot.add("text", { class: "budget-text", x: plot.right, y: at - 6, "text-anchor": "end" }, "budget " + formatBytes(data.budget_bytes));
  plot.dots = curves.map(([side]) => plot.add("circle", { class: "dot " + side, r: 5, visibility: "hidden" }));
}
/** A stepped line; of what falls within one pixel, the lowest and the highest. */
function stepPath(plot, curve, y) {
  const first = findLast(curve.starts, view.from), last = findLast(curve.starts, view.to);
  const stop = Math.min(plot.x(Math.min(curve.step_s, view.to)), plot.right);
  const start = Math.max(plot.left, plot.x(curve.starts[first]));
  if (stop < start) return null;
  const parts = [`M${start.toFixed(1)} ${y(curve.bytes[first]).toFixed(1)}`];
  let column = Math.round(start), low = Infinity, high = -Infinity, latest = curve.bytes[first];
  const flush = () => {
    if (high >= low) parts.push(`H${column}V${y(high).toFixed(1)}V${y(low).toFixed(1)}V${y(latest).toFixed(1)}`);
    low = Infinity; high = -Infinity;
  };
  for (let op = first; op <= last; op++) {
    const x = Math.max(plot.left, Math.round(plot.x(curve.starts[op])));
    if (x !== column) { flush(); column = x; }
    latest = curve.bytes[op];
    low = Math.min(low, latest); high = Math.max(high, latest);
  }
  flush();
  parts.push(`H${stop.toFixed(1)}`);
  return { d: parts.join(""), start };
}
function readMemory(t) {
  const box = byId("readout");
  if (!box) return;
  box.replaceChildren();
  for (const [side, curve] of curves) {
    const op = t === null ? curve.peak : findLast(curve.starts, t);
    const article = box.appendChild(html("article", side));
    const over = t !== null && t > curve.step_s;
    article.append(html("p", "size", over ? "over" : formatBytes(curve.bytes[op])));
    const label = words[curve.labels[op]] || words[curve.names[op]];
    const source = words[curve.sources[op]];
    const when = t === null ? "at its peak" : "at " + formatSeconds(t);
    article.append(html("p", "place", over
      ? `${NAMES[side]}: the step ended at ${formatSeconds(curve.step_s)} (${curve.how})`
      : `${NAMES[side]}, ${when} (${curve.how}) · op ${op}: ${label}${source ? " · " + source : ""}`));
    if (!over) article.append(listAlive(curve, op));
  }
}
function listAlive(curve, op) {
  const alive = [];
  for (let k = 0; k < curve.holders.length; k += 5) {
    if (curve.holders[k + 3] <= op && op <= curve.holders[k + 4]) alive.push(k);
  }
  alive.sort((a, b) => curve.holders[b + 2] - curve.holders[a + 2]);
  const list = html("ol");
  const row = (text, size) => {
    const item = list.appendChild(html("li"));
    const name = item.appendChild(html("span", "", text));
    name.title = text;
    item.append(html("span", "", formatBytes(size)));
  };
  row("arguments and outputs", curve.base_bytes);
  for (const k of alive.slice(0, 6)) {
    const source = words[curve.holders[k + 1]];
    row(words[curve.holders[k]] + (source ? " · " + source : ""), curve.holders[k + 2]);
  }
  const rest = alive.slice(6);
  if (rest.length) row(`${rest.length} more`, rest.reduce((sum, k) => sum + curve.holders[k + 2], 0));
  return list;
}
